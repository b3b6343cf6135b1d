"""What a round's drafts are expected to be worth, request by request."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dspark.core.hashed_law import HashedLaw
from dspark.drafters.fake import FakeDrafter
from dspark.engine import drafted_round
from dspark.engine.drafted_round import grouped
from dspark.engine.options import DecodeOptions
from dspark.engine.page_manager import PageManager
from dspark.engine.ragged import begin_each
from dspark.engine.request import Request
from dspark.engine.running import Running
from dspark.engine.strategy import Strategy
from dspark.targets.fake import FakeTarget
from dspark.types import Acceptance, DraftBlocks, LikeliestDrafts, SamplingParams, Verdict

V, GAMMA, WIDTH = 6, 3, 8
GREEDY, SAMPLED = SamplingParams(), SamplingParams(temperature=1.0)
CHANCES = {GREEDY: [0.9, 0.8, 0.7], SAMPLED: [0.5, 0.4, 0.3]}


def decoding(drafter: FakeDrafter, params: SamplingParams, key: int) -> Running:
    """A request whose prompt of two tokens was read."""
    target = FakeTarget(HashedLaw(V), V)
    request = Request(target.info, drafter, DecodeOptions(), [1, 2], params)
    running = Running(key, request, Strategy("drafts", drafter))
    cache = drafter.new_cache(request.capacity)
    drafter.extend(torch.zeros(2, WIDTH), cache)
    running.seat(PageManager(4).open([1, 2]), target.new_cache(request.capacity), cache)
    request.commit_first(Verdict(0, 3))
    return running


@pytest.mark.parametrize("order", [(GREEDY, SAMPLED), (SAMPLED, GREEDY)], ids=["greedy first", "sampled first"])
def test_without_a_head_each_request_is_expected_to_fare_as_its_sampling_did_in_training(
    order: tuple[SamplingParams, ...],
) -> None:
    drafter = FakeDrafter(HashedLaw(V, 1), V, GAMMA, WIDTH)
    record = Acceptance(sampled=tuple(CHANCES[SAMPLED]), greedy=tuple(CHANCES[GREEDY]))
    drafter.info = replace(drafter.info, acceptance=record)
    (group,) = grouped([decoding(drafter, params, key) for key, params in enumerate(order)], room=8)
    np.testing.assert_allclose(group.draft(GAMMA, GAMMA), [CHANCES[params] for params in order], rtol=1e-6)


class OneGo:
    """Blocks of a fake drafter that also draft by themselves; `asked` says how often they did."""

    def __init__(self, blocks: DraftBlocks) -> None:
        self._blocks = blocks
        self.asked = 0

    def step(self, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._blocks.step(previous)

    def likeliest(self, previous: Tensor, slots: int) -> LikeliestDrafts:
        self.asked += 1
        tokens = []
        for _ in range(slots):
            logits, _ = self._blocks.step(previous)
            previous = logits.argmax(-1)
            tokens.append(previous)
        zeros = torch.zeros(len(previous), slots)
        return LikeliestDrafts(torch.stack(tokens, dim=1), None, zeros, zeros)


@pytest.mark.parametrize("params", [(GREEDY, GREEDY), (GREEDY, SAMPLED)], ids=["nobody draws", "one draws"])
def test_blocks_draft_in_one_go_where_nobody_draws(
    params: tuple[SamplingParams, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = FakeDrafter(HashedLaw(V, 1), V, GAMMA, WIDTH)
    (plain,) = grouped([decoding(drafter, each, key) for key, each in enumerate(params)], room=8)
    plain.draft(GAMMA, GAMMA)
    begun: list[OneGo] = []

    def begin_in_one_go(*args: Any) -> OneGo:
        begun.append(OneGo(begin_each(*args)))
        return begun[-1]

    monkeypatch.setattr(drafted_round, "begin_each", begin_in_one_go)
    (group,) = grouped([decoding(drafter, each, key) for key, each in enumerate(params)], room=8)
    group.draft(GAMMA, GAMMA)
    assert group.sampler.drafts == plain.sampler.drafts
    assert begun[0].asked == (0 if SAMPLED in params else 1)


@pytest.mark.parametrize("width", [1, 2, GAMMA])
def test_blocks_are_as_wide_as_planned(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the room of a request: who else is there must not change its law."""
    drafter = FakeDrafter(HashedLaw(V, 1), V, GAMMA, WIDTH)
    begun: list[int] = []

    def begin(*args: Any) -> DraftBlocks:
        begun.append(args[-1])
        return begin_each(*args)

    monkeypatch.setattr(drafted_round, "begin_each", begin)
    (group,) = grouped([decoding(drafter, GREEDY, 0), decoding(drafter, SAMPLED, 1)], room=8)
    confidences = group.draft(GAMMA, width)
    assert begun == [width]
    assert [len(drafts) for drafts in group.sampler.drafts] == [width, width]
    assert np.count_nonzero(confidences, axis=1).tolist() == [width, width]
