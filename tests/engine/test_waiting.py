from dataclasses import dataclass

import pytest

from dspark.engine.waiting import WaitingQueue


@dataclass(frozen=True)
class Guest:
    key: int


def drained(queue: WaitingQueue[Guest]) -> list[int]:
    return [queue.pop().key for _ in range(len(queue))]


def test_first_come_first_served() -> None:
    queue: WaitingQueue[Guest] = WaitingQueue()
    for key in (3, 5, 9):
        queue.put(Guest(key))
    assert (queue.head.key, len(queue)) == (3, 3)
    assert drained(queue) == [3, 5, 9]


def test_who_was_sent_back_waits_in_front_of_later_ones() -> None:
    queue: WaitingQueue[Guest] = WaitingQueue()
    for key in (7, 8, 6, 5):
        queue.put(Guest(key))
    assert drained(queue) == [5, 6, 7, 8]


def test_aborted_while_waiting() -> None:
    queue: WaitingQueue[Guest] = WaitingQueue()
    guests = [Guest(key) for key in range(4)]
    for guest in guests:
        queue.put(guest)
    queue.remove(guests[1])
    queue.remove(guests[3])
    with pytest.raises(KeyError, match="3"):
        queue.remove(guests[3])
    with pytest.raises(KeyError, match="2"):
        queue.remove(Guest(2))
    assert drained(queue) == [0, 2]
