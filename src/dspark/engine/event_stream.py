"""What the engine's thread tells one coroutine."""

import asyncio

from dspark.engine.events import Event


class EventStream:
    """Events of one request on the way to the coroutine that made this object; `request` is its number once it has one.

    The engine's thread sets `request` and calls `tell`, the coroutine awaits `next`.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        self.request: int | None = None

    def tell(self, event: Event | BaseException) -> bool:
        """Send an event, or an error to be raised there; False if the loop is closed, so that nobody reads any more."""
        try:
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)
        except RuntimeError:  # the loop may be closed at any time, so there is nothing to ask beforehand
            return False
        return True

    async def next(self) -> Event:
        """The next event. Raises the error that was told instead."""
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event
