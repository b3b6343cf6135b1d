"""`dspark.LLM`: models by name, an engine around them, and answers for lists of prompts."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from dspark.data.chat import Message
from dspark.data.text import TextCodec
from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.async_engine import AsyncEngine
from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.models import Models, open_models
from dspark.engine.prompts import Prompt, prompt_list
from dspark.engine.result import GenerationResult
from dspark.engine.start_profile import start_profile
from dspark.engine.stopwatch import Clock
from dspark.engine.strategy import Strategy, drafter_kind
from dspark.engine.survival_models import survival_models
from dspark.errors import ConfigError
from dspark.scheduling.cost import CostModel
from dspark.targets.registry import DtypeName
from dspark.types import SamplingParams

Watch = Callable[[int, int], None]
"""Told how many requests are done, of how many."""


class LLM:
    """A target with its drafters, ready to serve.

    `drafter` is a directory, "none", or several directories by the name of the strategy that each shall be; None is the
    drafter shipped for the target. Models live on `device`, `cpu` or `cuda`. Strategies "lookup" and "none" are always
    there. What rounds cost here is measured at the first start and kept (`cost` replaces it); `notes` say what a user
    should know.

    Raises as `load_target` and `load_drafter` do, and as `EngineCore`.
    """

    def __init__(
        self,
        target: str | Path = "smollm2-135m",
        drafter: str | Path | Mapping[str, str | Path] | None = None,
        options: EngineOptions | None = None,
        *,
        dtype: DtypeName = "bf16",
        device: torch.device | str = "cpu",
        cost: CostModel | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        options = EngineOptions() if options is None else options
        models = [*_opened(target, drafter, dtype, device)]
        self.notes: list[str] = []
        strategies = [Strategy("lookup", None, options.lookup or PromptLookup())]
        strategies += [self._strategy(name, one, options) for name, one in models if one.drafter is not None]
        if len(strategies) == 1 and options.strategy == "auto":
            options = replace(options, strategy="none")
        self.codec: TextCodec = models[0][1].codec
        if cost is None and (profile := start_profile(models[-1][1], requests=options.max_requests)) is not None:
            cost = profile.table
        self.core = EngineCore(models[0][1].target, strategies, options, cost, clock)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        strategy: str | None = None,
        watch: Watch = lambda done, of: None,
    ) -> list[GenerationResult]:
        """Continue `prompts`, all at once; the results come in their order. One `params` serves all.

        Ctrl-C takes back what is not finished and leaves the engine as it was.

        Raises:
            ConfigError: prompts or parameters cannot be used.
            CapacityError: a prompt leaves no room for an answer.
        """
        ids = [self._ids(prompt) for prompt in prompt_list(prompts)]
        given = params if isinstance(params, Sequence) else [SamplingParams() if params is None else params] * len(ids)
        if len(given) != len(ids):
            raise ConfigError(f"{len(given)} sampling parameters for {len(ids)} prompts; give one, or one for each")
        numbers: list[int] = []
        try:
            for prompt_ids, own in zip(ids, given, strict=True):
                detokeniser = self.codec.detokeniser()
                numbers.append(self.core.add(prompt_ids, own, strategy=strategy, detokeniser=detokeniser))
            return self._finish(numbers, watch)
        except BaseException:
            for number in numbers:
                self.core.abort(number)
            raise

    def chat(
        self,
        conversations: Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        thinking: bool = False,
        strategy: str | None = None,
    ) -> list[GenerationResult]:
        """Answer conversations, rendered by the target's chat template; errors as in `generate`."""
        prompts = [self.codec.encode_chat(messages, thinking=thinking) for messages in conversations]
        return self.generate(prompts, params, strategy=strategy)

    def serve(self) -> AsyncEngine:
        """The engine behind coroutines, which streams text; until it is closed, it alone may use this object."""
        return AsyncEngine(self.core, self.codec)

    def _ids(self, prompt: Prompt) -> list[int]:
        return self.codec.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _finish(self, numbers: Sequence[int], watch: Watch) -> list[GenerationResult]:
        results: dict[int, GenerationResult] = {}
        wanted = set(numbers)
        while len(results) < len(wanted):
            for event in self.core.step():
                if event.result is not None and event.request_id in wanted:
                    results[event.request_id] = event.result
                    watch(len(results), len(wanted))
        return [results[number] for number in numbers]

    def _strategy(self, name: str, models: Models, options: EngineOptions) -> Strategy:
        model_of, note = survival_models(models, options.rule, options.greedy_drafts)
        self.notes += [] if note is None else [f"{name}: {note}"]
        return Strategy(name, models.drafter, options.lookup, model_of)


def _opened(
    target: str | Path,
    drafter: str | Path | Mapping[str, str | Path] | None,
    dtype: DtypeName,
    device: torch.device | str,
) -> list[tuple[str, Models]]:
    """Each drafter's models by name, on one target."""
    if not isinstance(drafter, Mapping):
        models = open_models(target, drafter, dtype, device)
        return [(_name(models.drafter), models)]
    first, *others = drafter.items()
    opened = open_models(target, first[1], dtype, device)
    return [(first[0], opened), *((name, opened.beside(directory)) for name, directory in others)]


def _name(drafter: DrafterModule | None) -> str:
    return "none" if drafter is None else drafter_kind(drafter)
