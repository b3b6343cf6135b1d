"""What an observer is told: every slot before its round's outcome, and nothing changes by watching."""

import pytest
import torch

from dspark.core.hashed_law import HashedLaw
from dspark.core.tau import Round, RoundTally
from dspark.drafters.fake import FakeDrafter
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.targets.fake import FakeTarget
from dspark.types import SamplingParams

V, ORDER, PROMPT = 6, 2, (0, 3, 1, 4)
PARAMS = SamplingParams(temperature=1.0, max_tokens=20, seed=7)


class Notes:
    """Keeps what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[float | Round | None] = []
        self.widths: set[int] = set()

    def full_width(self, position: int) -> bool:
        return False

    def slot(self, logits: torch.Tensor, confidence: float | None) -> None:
        self.widths.add(len(logits))
        self.told.append(confidence)

    def laws(self, p: torch.Tensor, q: torch.Tensor) -> None:
        self.laws_of_round = p, q

    def judged(self, entry: Round) -> None:
        self.told.append(entry)


def loop(**options) -> ReferenceLoop:
    target = FakeTarget(HashedLaw(V, 1, ORDER), V, ORDER)
    drafter = FakeDrafter(HashedLaw(V, 1, 1), V, 3, 2 * (ORDER + 2), confidence=lambda tokens: float(len(tokens)))
    return ReferenceLoop(target, drafter, DecodeOptions(**options))


def test_slots_come_before_their_round_and_every_round_is_told():
    notes = Notes()
    result = loop().generate(PROMPT, PARAMS, observer=notes)
    assert notes.widths == {V}
    assert [one for one in notes.told if not isinstance(one, Round)] == [1.0, 2.0, 3.0] * result.tally.rounds
    assert [isinstance(one, Round) for one in notes.told] == [False, False, False, True] * result.tally.rounds
    tally = RoundTally(first_tokens=1)
    for one in notes.told:
        if isinstance(one, Round):
            tally.add(one)
    assert tally == result.tally


def test_copied_drafts_are_not_the_drafters_and_not_told():
    notes = Notes()
    result = loop(lookup=PromptLookup(2, match=1)).generate(PROMPT, PARAMS, observer=notes)
    told = [one for one in notes.told if isinstance(one, Round)]
    assert 0 < len(told) == result.tally.rounds - result.lookup_rounds < result.tally.rounds
    assert len(notes.told) == 4 * len(told)


def test_watching_changes_nothing():
    assert loop().generate(PROMPT, PARAMS, observer=Notes()).token_ids == loop().generate(PROMPT, PARAMS).token_ids


@pytest.mark.parametrize("width", [0, 2])
def test_a_refused_slot_was_shown(width):
    notes = Notes()
    loop(admits=lambda prefix: len(prefix.tokens) < width).generate(PROMPT, PARAMS, observer=notes)
    assert notes.told[: width + 1] == [float(k + 1) for k in range(width + 1)]
    first = notes.told[width + 1]
    assert isinstance(first, Round)
    assert first.drafted == width
