"""Following the target's text counts exactly the rounds that the reference loop makes of the prompt."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dspark.core.tau import RoundTally
from dspark.engine.reference import ReferenceLoop
from dspark.errors import FormatError
from dspark.training.on_policy import build_probe, follow, write_greedily
from dspark.types import Drafter, DrafterInfo, SamplingParams
from tests.training.tiny import VOCAB, TinyTarget, tiny_answers, tiny_drafter

TAPS, GAMMA = (0, 3), 3


@dataclass
class Places:
    """A cache that only counts."""

    length: int = 0
    capacity: int = 10_000

    def rollback(self, length: int) -> None:
        assert 0 <= length <= self.length
        self.length = length


@dataclass
class Scripted:
    """Drafts the given sequence, except at `wrong` positions; notes all features that it is shown."""

    sequence: Sequence[int]
    wrong: frozenset[int]
    kept: Tensor | None = None
    shown: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.info = DrafterInfo("scripted", GAMMA, TAPS, VOCAB, self.kept)

    def new_cache(self, capacity: int) -> Places:
        return Places()

    def extend(self, features: Tensor, cache: Places) -> None:
        self.shown.append(features.clone())
        cache.length += len(features)

    def begin(self, anchor: int, cache: Places, gamma: int | None = None) -> "ScriptedBlock":
        assert self.sequence[cache.length] == anchor
        return ScriptedBlock(self, cache.length + 1)


@dataclass
class ScriptedBlock:
    drafter: Scripted
    place: int

    def step(self, previous: int) -> tuple[Tensor, None]:
        drafter = self.drafter
        token = (drafter.sequence[self.place] + (self.place in drafter.wrong)) % VOCAB
        self.place += 1
        kept = torch.arange(VOCAB) if drafter.kept is None else drafter.kept
        return (kept == token).float(), None


def loop_tally(target: TinyTarget, drafter: Drafter, prompt: Sequence[int], limit: int) -> RoundTally:
    return ReferenceLoop(target, drafter).generate(prompt, SamplingParams(max_tokens=limit)).tally


def target_ending_at(place: int) -> TinyTarget:
    """A target whose greedy answer to the first tiny prompt ends with the token it has at `place`."""
    target = TinyTarget()
    text = write_greedily(target, tiny_answers()[0].prompt_ids, 40, 0)
    target.info = replace(target.info, eos_token_ids=(text.token_ids[place],))
    return target


@pytest.mark.parametrize("limit", [1, 2, 7, 24])
@pytest.mark.parametrize("wrong", [range(0), range(0, 60, 3), range(0, 60, 5), range(60)])
@pytest.mark.parametrize("ending", [None, 6])
@pytest.mark.parametrize("pruned", [False, True])
def test_rounds_are_those_of_the_loop(limit: int, wrong: range, ending: int | None, pruned: bool) -> None:
    target = TinyTarget() if ending is None else target_ending_at(ending)
    prompt = tiny_answers()[0].prompt_ids
    text = write_greedily(target, prompt, limit, GAMMA)
    sequence = (*prompt, *text.token_ids, *(0,) * 8)
    kept = torch.arange(0, VOCAB, 2) if pruned else None
    live, followed = (Scripted(sequence, frozenset(wrong), kept) for _ in range(2))
    expected = loop_tally(target, live, prompt, limit)
    features = target.forward(torch.tensor(sequence), target.new_cache(99), TAPS).features
    found = follow(followed, text, features[: len(prompt) + len(text.token_ids) - 1], limit)
    assert found == expected
    shown = torch.cat(followed.shown)
    torch.testing.assert_close(shown[: len(torch.cat(live.shown))], torch.cat(live.shown))


def test_a_probe_measures_a_real_drafter_as_the_loop_does(tmp_path: Path) -> None:
    target, drafter, answers = TinyTarget(), tiny_drafter(draft_vocab_size=20), tiny_answers()[:3]
    probe = build_probe(target, answers, 12, drafter.info.gamma, drafter.info.target_layer_ids, tmp_path / "texts")
    expected = RoundTally.merged(loop_tally(target, drafter, answer.prompt_ids, 12) for answer in answers)
    found = probe(drafter)
    assert (found.tau, found.rounds, found.texts) == (expected.tau, expected.rounds, 3)
    assert found.acceptance == tuple(expected.conditional_acceptance_by_position())


def test_texts_are_written_once_for_one_target_and_limit(tmp_path: Path) -> None:
    path, answers = tmp_path / "texts", tiny_answers()[:2]
    first = build_probe(TinyTarget(), answers, 8, GAMMA, TAPS, path)
    lines = path.read_text()
    assert build_probe(TinyTarget(), answers, 8, GAMMA, TAPS, path).texts == first.texts
    assert path.read_text() == lines
    assert len(build_probe(TinyTarget(), answers, 9, GAMMA, TAPS, path).texts[0].token_ids) == 9 + GAMMA
    other = TinyTarget()
    other.info = replace(other.info, weights_hash="others")
    other.lm_head_weight = other.lm_head_weight.flip(0)
    assert build_probe(other, answers, 8, GAMMA, TAPS, path).texts != first.texts


def test_something_else_in_place_of_texts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text('{"prompt_ids": [1]}\n')
    with pytest.raises(FormatError, match="holds no greedy texts"):
        build_probe(TinyTarget(), tiny_answers()[:1], 8, GAMMA, TAPS, tmp_path / "texts")
