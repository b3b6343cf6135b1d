"""A request inside the engine: its text, its pages, and how far its caches reach."""

from dspark.calibration.signals import RoundHistory
from dspark.core.tau import Round
from dspark.engine.lease import Lease
from dspark.engine.request import Request
from dspark.engine.result import FinishReason
from dspark.engine.strategy import Strategy
from dspark.types import Cache

READING = 0.5
"""What reading a known position costs at most, in positions that a drafter helps with (few requests, a CPU)."""


class Running:
    """`request` and what the engine keeps of it. Without pages it waits, for the first time or once more.

    `target_cache` and `draft_cache` exist from `seat` to `unseat`. `error` is what ended it, if something went wrong.
    It was `chosen` how it drafts; its `strategy` is that while it is awake, and the same without drafter while not.
    """

    def __init__(
        self, key: int, request: Request, strategy: Strategy, deadline: float | None = None, salt: str = ""
    ) -> None:
        self.key, self.request, self.deadline = key, request, deadline
        self.chosen = self.strategy = strategy
        self._salt = salt
        self.lease: Lease | None = None
        self.draft_cache: Cache | None = None
        self.texts: list[str] = []
        self.error: str | None = None
        self.history = RoundHistory()
        request.memory = self
        self._target_cache: Cache | None = None

    @property
    def salt(self) -> str:
        """Prefixes are shared by requests of the same strategy and the same user's salt."""
        name = self.strategy.name
        return f"{len(name)} {name} {self._salt}"  # the length says where the name ends

    @property
    def asleep(self) -> bool:
        """Whether it goes without its drafter."""
        return self.strategy is not self.chosen

    @property
    def target_cache(self) -> Cache:
        """Its keys and values of the target."""
        assert self._target_cache is not None, "a request without pages has no cache"
        return self._target_cache

    @property
    def seated(self) -> bool:
        """Whether it has pages."""
        return self._target_cache is not None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended by itself; None while it goes on."""
        return self.request.output.finish_reason if self.error is None else "error"

    def tokens(self, first: int, end: int) -> list[int]:
        """Committed tokens at positions `first` to before `end`."""
        prompt, answer = self.request.prompt_ids, self.request.output.token_ids
        size = len(prompt)
        return [*prompt[first:end], *answer[max(first - size, 0) : max(end - size, 0)]]

    @property
    def goal(self) -> int:
        """Positions that the caches must hold before rounds begin: the prompt, then all but the anchor."""
        return self.request.length - (1 if self.request.output.token_ids else 0)

    @property
    def computed(self) -> int:
        """Positions that they do hold."""
        return self.target_cache.length

    @property
    def drafts(self) -> int:
        """The most that a round may propose, and so the positions that it may write behind its anchor."""
        return self.strategy.gamma

    @property
    def lasts(self) -> bool:
        """Whether so much text may still come that it is worth reading the known one again, for the drafter."""
        return self.request.limit - len(self.request.output.token_ids) >= self.computed * READING

    def late(self, now: float) -> bool:
        """Whether its time is up."""
        return self.deadline is not None and now >= self.deadline

    def seat(self, lease: Lease, target_cache: Cache, draft_cache: Cache | None) -> None:
        """Give it pages, and caches that view them."""
        self.lease, self._target_cache, self.draft_cache = lease, target_cache, draft_cache

    def sleep(self) -> None:
        """Go without the drafter from here on; what is computed so is shared with nobody before the next seat."""
        if self.chosen.drafter is not None and not self.asleep:
            self.strategy, self.draft_cache = self.chosen.undrafted, None

    def wake(self) -> None:
        """Have the drafter again, from the next seat on."""
        assert not self.seated, "a drafter reads the whole text: give the seat back first"
        self.strategy = self.chosen

    def judged(self, entry: Round) -> None:
        """Take in how a round of its drafter went, as a `RoundMemory`."""
        self.history.update(entry.accepted, entry.judged)

    def unseat(self) -> None:
        """Forget the caches; the pages are the manager's again."""
        self.lease = self._target_cache = self.draft_cache = None
