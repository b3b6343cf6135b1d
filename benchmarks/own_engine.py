"""This engine as a peer among others: an arm of `dspark bench`, with a kernel by name."""

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from benchmarks.peer_engines import Served
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.models import Models
from dspark.evaluation.bench.arms import Arm, find_arms
from dspark.evaluation.bench.engines import ArmEngines
from dspark.nn.kernel_choice import KernelName
from dspark.targets.registry import load_target
from dspark.types import SamplingParams

OURS = "dspark"
"""The engine as its first arm and kernel make it: the one that ratios are of."""


@dataclass(frozen=True, slots=True)
class Own:
    """One way to run this engine: models, an arm on them, and whether it copies where the text repeats itself."""

    models: Models
    arm: Arm
    lookup: bool = True

    def ready(self, users: int) -> "Ours":
        """An engine for `users` at a time."""
        lookup = PromptLookup() if self.lookup else None
        return Ours(ArmEngines(self.models, EngineOptions(max_requests=users), lookup=lookup).build(self.arm), users)


class Ours:
    """A running engine; it lives as long as its level, like those of others."""

    def __init__(self, core: EngineCore, users: int) -> None:
        self._core, self._users = core, users

    def serve(self, prompts: Sequence[Sequence[int]], max_tokens: int, natural: bool = False) -> Served:
        """As `Peer`."""
        gc.collect()
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=not natural)
        waiting, running, answers = list(prompts), set[int](), dict[int, tuple[int, ...]]()
        waiting.reverse()
        started = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < self._users:
                running.add(self._core.add(waiting.pop(), params))
            for event in self._core.step():
                answers[event.request_id] = answers.get(event.request_id, ()) + event.token_ids
                if event.finish_reason is not None:
                    running.remove(event.request_id)
        seconds = time.perf_counter() - started
        return Served(seconds, tuple(answers[number] for number in sorted(answers)))

    def __enter__(self) -> "Ours":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing runs elsewhere."""


def own_engines(
    models: Models, target: str, arms: Sequence[str], kernels: Sequence[KernelName], lookup: bool
) -> Mapping[str, Own]:
    """Every arm with every kernel, by name. `models` are those of the kernel "auto"; others are opened from `target`.

    Raises ConfigError for an arm or a kernel that does not exist, or cannot run here.
    """
    chosen = {kernel: models if kernel == "auto" else with_kernel(models, target, kernel) for kernel in kernels}
    pairs = list(product(chosen, find_arms(arms)))
    names = [" ".join([OURS, *own_words(kernel, arm.name, arms[0], kernels[0])]) for kernel, arm in pairs]
    return {name: Own(chosen[kernel], arm, lookup) for name, (kernel, arm) in zip(names, pairs, strict=True)}


def own_words(kernel: str, arm: str, first_arm: str, first_kernel: str) -> list[str]:
    """What tells an engine from the first."""
    return [arm] * (arm != first_arm) + [kernel] * (kernel != first_kernel)


def with_kernel(models: Models, target: str | Path, kernel: KernelName) -> Models:
    """`models` with a target, named `target`, that computes with another kernel, and the drafter that goes with it.

    `compiled-int8` rounds the weights of both: its answers are of another target.
    """
    loaded = load_target(target, kernel=kernel)
    if models.drafter_directory is None:
        return Models(loaded, models.codec, None, None)
    return Models(loaded, models.codec, None, None).beside(models.drafter_directory)
