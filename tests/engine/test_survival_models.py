"""The models beside a drafter's weights, looked up for requests of any sampling."""

import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dspark.calibration.records import DraftMode
from dspark.core.rejection import TokenRejection
from dspark.engine import survival_models as module
from dspark.types import SamplingParams


def test_the_nearest_temperature_serves_any_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose temperatures: what is remembered of them must not grow with their number."""
    known = [
        SimpleNamespace(
            sampling=SimpleNamespace(temperature=temperature, draft_mode=DraftMode.SAMPLED, rule="TokenRejection"),
            model=f"fitted at {temperature}",
        )
        for temperature in (0.5, 1.0)
    ]
    monkeypatch.setattr(module, "load_calibrations", lambda path, pair: known)
    info = SimpleNamespace(weights_hash="w", template_hash="t", gamma=3)
    models: Any = SimpleNamespace(
        drafter=SimpleNamespace(info=info),
        drafter_directory=Path("drafter"),
        drafter_hash=lambda: "d",
        target=SimpleNamespace(info=info),
    )
    model_of, note = module.survival_models(models, TokenRejection())
    assert note is None
    for i in range(2_000):
        temperature = 0.1005 + i / 1_000
        nearest = 0.5 if temperature < 0.75 else 1.0
        assert model_of(SamplingParams(temperature=temperature)) == f"fitted at {nearest}"
    kept = inspect.getclosurevars(model_of).nonlocals["model_at"].cache_info()
    assert kept.currsize <= module.MOST_KEPT < 2_000
