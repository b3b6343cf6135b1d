"""Opening by name: the drafter is the one asked for, fast unless told otherwise, and its absence is one clear error."""

from pathlib import Path

import pytest

from dspark.drafters.shipped import drafter_directory, shipped_drafter
from dspark.engine.models import open_models
from dspark.errors import FormatError
from dspark.nn.compiled.linear import CompiledKernel, CompiledLinear, Packing
from dspark.targets.native import NativeTarget
from dspark.targets.registry import DtypeName


def test_a_drafter_is_named_shipped_or_left_out() -> None:
    assert drafter_directory("some/where", "smollm2-135m") == Path("some/where")
    assert drafter_directory(None, "smollm2-135m") == shipped_drafter("smollm2-135m")
    assert drafter_directory(None, "stranger") is None
    assert drafter_directory("none", "smollm2-135m") is None


@pytest.mark.slow
def test_the_shipped_drafter_comes_packed(model_wheel: str) -> None:
    models = open_models(model_wheel)
    drafter, directory = models.speculative()
    assert directory == shipped_drafter(model_wheel)
    assert drafter.packed_head is not None


@pytest.mark.slow
def test_without_a_drafter_nothing_is_speculative(model_wheel: str) -> None:
    models = open_models(model_wheel, "none")
    assert (models.drafter, models.drafter_directory) == (None, None)
    with pytest.raises(FormatError, match=r"there is no drafter for smollm2-135m.*--drafter"):
        models.speculative()


@pytest.mark.slow
@pytest.mark.skipif(not CompiledKernel.available(Packing.BYTES), reason="no matrix unit")
@pytest.mark.parametrize(("dtype", "kernel"), [("int8", "compiled-int8"), ("bf16", "compiled-bf16")])
def test_a_drafter_is_int8_where_the_target_is_or_runs_on_a_matrix_unit(
    model_wheel: str, dtype: DtypeName, kernel: str
) -> None:
    models = open_models(model_wheel, dtype=dtype)
    drafter, _ = models.speculative()
    assert isinstance(models.target, NativeTarget)
    assert models.target.kernel.name == kernel
    assert isinstance(drafter.packed_head, CompiledLinear)
    assert drafter.packed_head.packing is Packing.BYTES
