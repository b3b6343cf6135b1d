"""Random lives of requests on one `PageManager`, against a model that writes down what every slot of memory holds."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dspark.engine.lease import Lease
from dspark.engine.page_manager import PageManager

PAGE = 2
Text = tuple[str, tuple[int, ...]]
GARBAGE: Text = ("garbage", ())

salts = st.sampled_from(["", "other"])
tokens = st.integers(0, 1)
texts = st.lists(tokens, min_size=1, max_size=9)


@dataclass(eq=False)
class Request:
    lease: Lease
    salt: str
    tokens: list[int]
    finished: bool = False

    def text(self, length: int) -> Text:
        return self.salt, tuple(self.tokens[:length])

    @property
    def pages(self) -> list[int]:
        return self.lease.table.ids[: self.lease.table.count].tolist()


@dataclass
class Cache:
    """Texts of full pages that can be found, with their readers; `idle` ones in the order in which they go."""

    readers: dict[Text, int] = field(default_factory=dict)
    idle: list[Text] = field(default_factory=list)

    def hit(self, salt: str, prompt: list[int]) -> int:
        length = 0
        while length + PAGE < len(prompt) and (salt, tuple(prompt[: length + PAGE])) in self.readers:
            length += PAGE
        return length

    def read(self, text: Text) -> None:
        self.readers[text] = self.readers.get(text, 0) + 1
        if text in self.idle:
            self.idle.remove(text)

    def leave(self, text: Text) -> None:
        self.readers[text] -= 1
        if self.readers[text] == 0:
            self.idle.append(text)

    def give_up(self, count: int) -> None:
        for text in self.idle[:count]:
            del self.readers[text]
        self.idle = self.idle[count:]


class Lives(RuleBasedStateMachine):
    requests = Bundle("requests")

    @initialize(pages=st.integers(3, 9), caching=st.sampled_from([True, True, True, False]))
    def start(self, pages: int, caching: bool) -> None:
        self.manager = PageManager(pages, page=PAGE, prefix_caching=caching)
        self.memory = [[GARBAGE] * PAGE for _ in range(pages)]
        self.cache = Cache()
        self.running: list[Request] = []

    @rule(target=requests, prompt=texts, salt=salts)
    def open(self, prompt: list[int], salt: str) -> Request:
        return self._open(prompt, salt)

    def _open(self, prompt: list[int], salt: str) -> Request:
        expected = self.cache.hit(salt, prompt) if self.manager.prefix_caching else 0
        request = Request(self.manager.open(prompt, salt), salt, list(prompt))
        assert request.lease.hit == request.lease.length == expected < len(prompt)
        for end in range(PAGE, expected + 1, PAGE):
            self.cache.read(request.text(end))
        self.running.append(request)
        return request

    @rule(request=requests, new=st.lists(tokens, max_size=4), computed=st.integers(0, 6))
    def work(self, request: Request, new: list[int], computed: int) -> None:
        """Reserve as a round does, draft and reject all over the rest of the pages, then commit what is computed."""
        if request.finished:
            return
        request.tokens += new
        first = request.lease.length
        end = min(first + computed, len(request.tokens))
        if self._reserve(request, min(end + 1, 2 * self.manager.pages)):
            end = min(end, request.lease.table.count * PAGE)
            self._write(request, first, end)
            self._commit(request, first, end)

    def _reserve(self, request: Request, length: int) -> bool:
        missing = max(0, -(-length // PAGE) - request.lease.table.count)
        free, cached = self.manager.free, self.manager.cached
        granted = self.manager.reserve(request.lease, length)
        assert granted == (missing <= free + cached)
        if granted:
            self.cache.give_up(max(0, missing - free))
        else:
            assert (free, cached) == (self.manager.free, self.manager.cached)
        return granted

    def _write(self, request: Request, first: int, end: int) -> None:
        request.lease.check_write(first)
        for position in range(first, request.lease.table.count * PAGE):
            held = request.text(position + 1) if position < end else GARBAGE
            self.memory[request.pages[position // PAGE]][position % PAGE] = held

    def _commit(self, request: Request, first: int, end: int) -> None:
        self.manager.commit(request.lease, request.tokens[first:end])
        if self.manager.prefix_caching:
            for full in range(first // PAGE * PAGE + PAGE, end + 1, PAGE):
                self.cache.read(request.text(full))

    @rule(request=consumes(requests))
    def close(self, request: Request) -> None:
        if not request.finished:
            self._close(request)

    @rule(target=requests, request=consumes(requests))
    def preempt(self, request: Request) -> Request:
        if request.finished:
            return request
        self._close(request)
        return self._open(request.tokens, request.salt)

    def _close(self, request: Request) -> None:
        for end in range(request.lease.shared, 0, -PAGE):
            self.cache.leave(request.text(end))
        self.manager.close(request.lease)
        request.finished = True
        self.running.remove(request)

    @invariant()
    def every_reader_finds_its_text(self) -> None:
        for request in self.running:
            for position in range(request.lease.length):
                page = request.pages[position // PAGE]
                assert self.memory[page][position % PAGE] == request.text(position + 1)

    @invariant()
    def pages_add_up(self) -> None:
        manager = self.manager
        held = {page for request in self.running for page in request.pages}
        assert manager.used == len(held)
        assert manager.cached == len(self.cache.idle)
        assert manager.free + manager.cached + manager.used == manager.pages

    @invariant()
    def only_full_pages_have_several_readers(self) -> None:
        private = [page for request in self.running for page in request.pages[request.lease.shared // PAGE :]]
        shared = {page for request in self.running for page in request.pages[: request.lease.shared // PAGE]}
        assert len(private) == len(set(private))
        assert not shared & set(private)

    @invariant()
    def one_page_for_each_text(self) -> None:
        readers: dict[Text, set[int]] = {}
        for request in self.running:
            for slot in range(request.lease.shared // PAGE):
                readers.setdefault(request.text((slot + 1) * PAGE), set()).add(request.pages[slot])
        assert all(len(pages) == 1 for pages in readers.values())
        assert set(readers) <= set(self.cache.readers)

    def teardown(self) -> None:
        for request in list(self.running):
            self._close(request)
        assert self.manager.used == 0


@pytest.mark.parametrize("steps", [12, 60])
def test_random_lives(steps: int) -> None:
    run_state_machine_as_test(Lives, settings=settings(max_examples=720 // steps, stateful_step_count=steps))
