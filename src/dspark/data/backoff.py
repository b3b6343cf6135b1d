"""How long to wait before asking again."""

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits of `first` seconds, doubled after each attempt up to `longest`, each shortened at random by up to half."""

    attempts: int = 6
    first: float = 1.0
    longest: float = 60.0

    def wait(self, attempt: int, asked: float | None, random: Random) -> float:
        """Seconds to wait after the 1-based `attempt` failed; at least what the server `asked` for, if it is sensible.

        The random part keeps clients that failed together from coming back together.
        """
        own = min(self.longest, self.first * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        return own if asked is None else max(own, min(asked, self.longest))
