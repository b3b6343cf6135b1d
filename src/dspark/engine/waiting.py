"""Requests that wait for a seat."""

from bisect import bisect_left, insort
from typing import Generic, Protocol, TypeVar


class Numbered(Protocol):
    """A request with a number; numbers grow with arrival and are never used again."""

    @property
    def key(self) -> int: ...


R = TypeVar("R", bound=Numbered)


class WaitingQueue(Generic[R]):
    """First come, first served. Who was sent back waits in front of all who came later, in other words at the head."""

    def __init__(self) -> None:
        self._requests: list[R] = []

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def head(self) -> R:
        """Who is next. Raises IndexError if nobody waits."""
        return self._requests[0]

    def put(self, request: R) -> None:
        """Let `request` wait, for the first time or once more."""
        insort(self._requests, request, key=_key)

    def pop(self) -> R:
        """Take the head out."""
        return self._requests.pop(0)

    def remove(self, request: R) -> None:
        """Take a request out that was aborted, or whose deadline passed. Raises KeyError if it does not wait."""
        index = bisect_left(self._requests, request.key, key=_key)
        if index == len(self) or self._requests[index] is not request:
            raise KeyError(request.key)
        del self._requests[index]


def _key(request: Numbered) -> int:
    return request.key
