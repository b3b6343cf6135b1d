"""What the engine does between target and drafter happens where they live."""

import pytest
import torch

from dspark.drafters.dspark import DSpark
from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.features import FeatureRows
from dspark.engine.profile_plan import served_start_plan
from dspark.engine.served_work import ServedWork
from dspark.engine.strategy import Strategy
from dspark.engine.tiers import Tiers
from dspark.nn.paged_attention import PagedAttention, gathered_attention
from dspark.scheduling.registry import SchedulerConfig
from dspark.targets.native import NativeTarget
from dspark.types import SamplingParams
from tests.drafters.tiny import DFLASH
from tests.drafters.tiny import drafter as other_drafter
from tests.evaluation.tiny import drafter, native
from tests.nn.one_device import OneDevice

META = torch.device("meta")
KEPT = torch.tensor([9, 1, 4, 7, 3, 0])


def models() -> tuple[NativeTarget, DSpark]:
    plain = native(11)
    weights = {name: tensor.to(META) for name, tensor in plain._weights.items()}
    target = NativeTarget(plain.config, plain.info, weights, plain.kernel)
    module = drafter(plain, 3, kept=KEPT).to(META)
    module.attention = gathered_attention
    return target, module


def test_rounds_are_profiled_there() -> None:
    target, module = models()
    plan = served_start_plan(target.info, 3, 0.0, 4)
    assert plan is not None
    served = ServedWork(target, module, plan)
    pieces = [*served.verification().values(), *served.drafting().values()]
    assert len(pieces) > 4
    with OneDevice():
        for piece in pieces:
            piece()


def test_features_are_chosen_there() -> None:
    _, one = models()
    rows = FeatureRows([Strategy("one", one), Strategy("other", other_drafter(DFLASH))], 16)
    features = torch.empty(7, len(rows.taps) * 16, device=META)
    with OneDevice():
        chosen = rows.of(Strategy("one", one), features, torch.tensor([0, 3]))
    assert (chosen.shape, chosen.device) == ((2, 32), META)


def texts(attention: PagedAttention | None, tiers: Tiers | None) -> tuple[list[tuple[int, ...]], int, int]:
    """Greedy and sampled answers to prompts that begin alike, on few pages; preemptions and accepted drafts."""
    plain = native(11)
    target = NativeTarget(plain.config, plain.info, plain._weights, plain.kernel, attention=attention)
    module = drafter(target, 3, kept=KEPT)
    module.attention = attention
    options = EngineOptions(
        max_requests=4, max_batched_tokens=24, prefill_chunk=8, pages=8, scheduler=SchedulerConfig("fixed", park=False),
        lookup=None, tiers=tiers,
    )  # fmt: skip
    core = EngineCore(target, [Strategy("drafts", module)], options)
    stem = [(5 * i + i // 3) % 10 for i in range(20)]
    sampled = [SamplingParams(temperature=t, seed=i, max_tokens=20) for i, t in enumerate((0.0, 1.0, 0.0, 0.7, 1.0))]
    numbers = [core.add([*stem, i, i % 3], params) for i, params in enumerate(sampled)]
    results, preempted, accepted = {}, 0, 0
    while not core.idle:
        results |= {event.request_id: event.result.token_ids for event in core.step() if event.result is not None}
        assert core.last is not None
        preempted, accepted = preempted + core.last.preempted, accepted + core.last.accepted
    return [results[number] for number in numbers], preempted, accepted


@pytest.mark.parametrize("tiers", [None, Tiers((4, 16, 24))], ids=["as they are", "in tiers"])
def test_texts_are_those_of_requests_that_attend_one_after_another(tiers: Tiers | None) -> None:
    found, preempted, accepted = texts(gathered_attention, tiers)
    assert found == texts(None, None)[0]
    assert preempted > 0
    assert accepted > 0
