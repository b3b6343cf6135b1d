"""Lossless speculative decoding with DSpark drafters. `__all__` holds the public names; folders are private."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dspark.version import __version__ as __version__

if TYPE_CHECKING:
    from dspark.calibration.report import calibrate as calibrate
    from dspark.drafters.prompt_lookup import PromptLookup as PromptLookup
    from dspark.drafters.registry import load_drafter as load_drafter
    from dspark.engine.async_engine import AsyncEngine as AsyncEngine
    from dspark.engine.engine_options import EngineOptions as EngineOptions
    from dspark.engine.llm import LLM as LLM
    from dspark.engine.options import DecodeOptions as DecodeOptions
    from dspark.engine.reference import ReferenceLoop as ReferenceLoop
    from dspark.engine.start_profile import measure_draft_limit as measure_draft_limit
    from dspark.evaluation.evaluate import evaluate as evaluate
    from dspark.scheduling import CostTable as CostTable
    from dspark.scheduling import PrefixScheduler as PrefixScheduler
    from dspark.scheduling import SchedulerConfig as SchedulerConfig
    from dspark.targets.registry import load_target as load_target
    from dspark.targets.registry import load_tokenizer as load_tokenizer
    from dspark.training.run import train as train
    from dspark.types import SamplingParams as SamplingParams

_HOMES = {
    "AsyncEngine": "dspark.engine.async_engine",
    "CostTable": "dspark.scheduling",
    "DecodeOptions": "dspark.engine.options",
    "EngineOptions": "dspark.engine.engine_options",
    "LLM": "dspark.engine.llm",
    "PrefixScheduler": "dspark.scheduling",
    "PromptLookup": "dspark.drafters.prompt_lookup",
    "ReferenceLoop": "dspark.engine.reference",
    "SamplingParams": "dspark.types",
    "SchedulerConfig": "dspark.scheduling",
    "calibrate": "dspark.calibration.report",
    "evaluate": "dspark.evaluation.evaluate",
    "load_drafter": "dspark.drafters.registry",
    "load_target": "dspark.targets.registry",
    "load_tokenizer": "dspark.targets.registry",
    "measure_draft_limit": "dspark.engine.start_profile",
    "train": "dspark.training.run",
}

__all__ = [
    "LLM",
    "AsyncEngine",
    "CostTable",
    "DecodeOptions",
    "EngineOptions",
    "PrefixScheduler",
    "PromptLookup",
    "ReferenceLoop",
    "SamplingParams",
    "SchedulerConfig",
    "calibrate",
    "evaluate",
    "load_drafter",
    "load_target",
    "load_tokenizer",
    "measure_draft_limit",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `dspark --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dspark' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
