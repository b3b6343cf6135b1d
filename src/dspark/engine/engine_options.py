"""How the engine serves, beside what requests ask for."""

from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral

from dspark.core.rejection import RejectionRule, TokenRejection
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.tiers import Tiers
from dspark.errors import ConfigError
from dspark.scheduling.registry import SchedulerConfig


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Choices that change speed, memory and acceptance, never the law of a text.

    At most `max_requests` run at once; a step's forward has at most `max_batched_tokens` rows, of which a prompt takes
    `prefill_chunk` at most. `pages` of 16 positions are allocated once, by default as many as the requests can need and
    memory allows. `scheduler` decides how many drafts are verified, `strategy` where drafts come from if a request does
    not say; where a text repeats itself, `lookup` copies drafts beside a drafter. `overlap` plans a round while the one
    before it runs. With `follow_cost` the cost table is corrected by the times of real rounds; with `hibernate`
    drafters are put away while the scheduler sees for long that drafting will not pay.

    With `tiers` the rows of a forward are rounded up to one of these numbers by rows that nobody reads; the cost table
    should then be `padded`. `cuda_graphs` is refused until it has run on a GPU.

    Raises:
        ConfigError: a field cannot be; the message names it.
    """

    max_requests: int = 64
    max_batched_tokens: int = 512
    prefill_chunk: int = 256
    pages: int | None = None
    prefix_caching: bool = True
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    strategy: str = "auto"
    lookup: PromptLookup | None = field(default_factory=PromptLookup)
    rule: RejectionRule = field(default_factory=TokenRejection)
    greedy_drafts: bool = False
    overlap: bool = False
    hibernate: bool = True
    follow_cost: bool = True
    tiers: Tiers | None = None
    cuda_graphs: bool = False

    def __post_init__(self) -> None:
        if self.cuda_graphs:
            raise ConfigError("cuda_graphs is not yet verified on a GPU; run benchmarks/gpu_check.py --graphs on one")
        for name, holds, expected in _CHECKS:
            if not holds(getattr(self, name)):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; expected {expected}")
        if self.max_batched_tokens < self.max_requests:
            raise ConfigError(
                f"max_batched_tokens is {self.max_batched_tokens} for {self.max_requests} requests; each needs one "
                "row: raise it or lower max_requests"
            )


def _positive(value: object) -> bool:
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= 1


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds)


_CHECKS: tuple[tuple[str, Callable[[object], bool], str], ...] = (
    *((name, _positive, "1 or more") for name in ("max_requests", "max_batched_tokens", "prefill_chunk")),
    ("pages", lambda value: value is None or _positive(value), "1 or more, or None for as many as are useful"),
    *(
        (name, _is(bool), "true or false")
        for name in ("prefix_caching", "greedy_drafts", "overlap", "hibernate", "follow_cost", "cuda_graphs")
    ),
    ("scheduler", _is(SchedulerConfig), "a SchedulerConfig, such as SchedulerConfig('lagged')"),
    ("strategy", _is(str), "the name of a strategy"),
    ("lookup", _is(PromptLookup, type(None)), "a PromptLookup, or None for no copies"),
    ("rule", lambda value: isinstance(value, RejectionRule), "a rejection rule, such as TokenRejection()"),
    ("tiers", _is(Tiers, type(None)), "Tiers, or None"),
)
