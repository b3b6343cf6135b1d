"""What is asked: prompts of several sets in turn, and the requests of one run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, zip_longest
from random import Random

from dspark.errors import ConfigError
from dspark.evaluation.bench.load import Load
from dspark.types import SamplingParams


@dataclass(frozen=True, slots=True)
class Question:
    """One request to be sent; a prompt that is asked again has another `salt`, so that no cache answers for it."""

    prompt_ids: tuple[int, ...]
    params: SamplingParams
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Workload:
    """One level of load: `requests` are measured, after `warmup` others and among those that keep the load up.

    Answers have exactly `params.max_tokens` tokens where `params.ignore_eos`, else they end where the target ends them.
    With `steady` the load is as it says from the first measured request to the last token of the last one: warm-up
    comes before, further prompts come after, and what still runs then is aborted. Otherwise there is neither: all
    `requests` and nothing else are timed, from first to last.

    Raises:
        ConfigError: no prompts, nothing to measure, or warm-up where all is to be timed.
    """

    load: Load
    prompts: Sequence[Sequence[int]]
    params: SamplingParams
    requests: int
    warmup: int
    steady: bool = True

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ConfigError("there are no prompts to send; name prompt sets that hold some")
        if self.requests < 1 or self.warmup < 0:
            raise ConfigError(f"{self.requests} requests after {self.warmup}; expected 1 or more, after 0 or more")
        if self.warmup and not self.steady:
            raise ConfigError(f"warm-up of {self.warmup} requests where everything is timed; expected 0")

    def questions(self, seed: int) -> Iterator[Question]:
        """Requests without end, the same for every arm: prompts in a new order each time round, seeds by number.

        Users who all begin at once would end at once, too, time after time, if answers are of one length. So the first
        answers of a closed loop, its warm-up, are cut at a random length: where a user stands when somebody looks in.
        """
        random = Random(seed)
        order = list(range(len(self.prompts)))
        for again in count():
            random.shuffle(order)
            for place, i in enumerate(order, again * len(order)):
                params = replace(self.params, seed=seed + place)
                if place < self.warmup and self.load.users is not None:
                    params = replace(params, max_tokens=random.randint(1, params.max_tokens))
                yield Question(tuple(self.prompts[i]), params, f"again {again}" if again else "")


def mixed(sets: Sequence[Sequence[Sequence[int]]], longest: int | None = None) -> list[Sequence[int]]:
    """The prompts of all sets in turn, one of each while they last; those above `longest` tokens are left out."""
    fitting = [[prompt for prompt in prompts if longest is None or len(prompt) <= longest] for prompts in sets]
    return [prompt for turn in zip_longest(*fitting) for prompt in turn if prompt is not None]
