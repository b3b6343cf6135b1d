"""What the engine does between target and drafter happens where they live."""

import torch

from dspark.drafters.dspark import DSpark
from dspark.engine.features import FeatureRows
from dspark.engine.profile_plan import served_start_plan
from dspark.engine.served_work import ServedWork
from dspark.engine.strategy import Strategy
from dspark.nn.paged_attention import gathered_attention
from dspark.targets.native import NativeTarget
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
