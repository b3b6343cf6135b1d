"""What a round's drafts are expected to be worth, request by request."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dspark.core.hashed_law import HashedLaw
from dspark.drafters.fake import FakeDrafter
from dspark.engine.drafted_round import grouped
from dspark.engine.options import DecodeOptions
from dspark.engine.page_manager import PageManager
from dspark.engine.request import Request
from dspark.engine.running import Running
from dspark.engine.strategy import Strategy
from dspark.targets.fake import FakeTarget
from dspark.types import Acceptance, SamplingParams, Verdict

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
    np.testing.assert_allclose(group.draft(GAMMA), [CHANCES[params] for params in order], rtol=1e-6)
