"""Plain against speculative decoding on the same prompts, timed by the same function."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from dspark.core.tau import RoundTally
from dspark.engine.reference import ReferenceLoop
from dspark.types import SamplingParams

Decode = Callable[[Sequence[int]], "Decoded"]
"""Answer one prompt."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """One answer, and its rounds where the decoder reports them."""

    token_ids: tuple[int, ...]
    tally: RoundTally | None = None
    prefill_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Timed:
    """One answer with the seconds of the whole call, prompt included."""

    decoded: Decoded
    seconds: float


@dataclass(frozen=True, slots=True)
class Speed:
    """Output tokens per second over all prompts, one value per repeat."""

    per_repeat: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the repeats."""
        return median(self.per_repeat)

    @property
    def spread(self) -> tuple[float, float]:
        """(slowest, fastest) repeat."""
        return min(self.per_repeat), max(self.per_repeat)

    def over(self, other: "Speed") -> "Speed":
        """Ratio to `other`, repeat by repeat: what the machine does to both cancels."""
        return Speed(tuple(a / b for a, b in zip(self.per_repeat, other.per_repeat, strict=True)))


def loop_decoder(loop: ReferenceLoop, params: SamplingParams) -> Decode:
    """Answer with one of our loops."""

    def decode(prompt_ids: Sequence[int]) -> Decoded:
        result = loop.generate(prompt_ids, params)
        return Decoded(result.token_ids, result.tally, result.times.prefill)

    return decode


def run_arms(
    arms: Mapping[str, Decode],
    prompts: Sequence[Sequence[int]],
    repeats: int = 1,
    watch: Callable[[str, Timed], None] = lambda arm, timed: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[list[Timed]]]:
    """Answers [repeat][prompt] of every arm. Arms take turns on each prompt, so that drift of the machine hits all."""
    runs: dict[str, list[list[Timed]]] = {arm: [] for arm in arms}
    for repeat in range(repeats):
        for answers in runs.values():
            answers.append([])
        for prompt in prompts:
            for arm, decode in arms.items():
                started = clock()
                decoded = decode(prompt)
                timed = Timed(decoded, clock() - started)
                runs[arm][repeat].append(timed)
                watch(arm, timed)
    return runs


def speed(runs: Sequence[Sequence[Timed]]) -> Speed:
    """Tokens per second of one arm's runs [repeat][prompt]."""
    return Speed(
        tuple(
            sum(len(one.decoded.token_ids) for one in answers) / sum(one.seconds for one in answers) for answers in runs
        )
    )


def decoding_speed(runs: Sequence[Sequence[Timed]]) -> Speed:
    """The same without the prompt: tokens after the first, and seconds after the prefill, of arms that report it."""
    return Speed(
        tuple(
            sum(len(one.decoded.token_ids) - 1 for one in answers)
            / sum(one.seconds - one.decoded.prefill_seconds for one in answers)
            for answers in runs
        )
    )


def tally(runs: Sequence[Sequence[Timed]]) -> RoundTally:
    """All rounds of one arm's first repeat."""
    return RoundTally.merged(one.decoded.tally for one in runs[0] if one.decoded.tally is not None)
