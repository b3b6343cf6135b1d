from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.engine.lease import Lease
from dspark.engine.page_manager import PageManager
from dspark.engine.step_plan import Step, plan_step
from dspark.engine.waiting import WaitingQueue

PAGE = 2


@dataclass(frozen=True)
class Limits:
    max_requests: int = 4
    max_batched_tokens: int = 32
    prefill_chunk: int = 8


@dataclass(eq=False)
class Job:
    """A request that says `outputs` tokens, of which rounds commit as many at once as `luck` accepts of `drafts`."""

    key: int
    prompt: list[int]
    outputs: int = 4
    drafts: int = 2
    luck: int = 0
    said: int = 0
    read: int = 0
    lease: Lease | None = None

    @property
    def tokens(self) -> list[int]:
        return self.prompt + [token % 3 for token in range(self.said)]

    @property
    def computed(self) -> int:
        assert self.lease is not None
        return self.lease.length

    @property
    def goal(self) -> int:
        return len(self.prompt) + max(0, self.said - 1)

    @property
    def longest(self) -> int:
        return len(self.prompt) + self.outputs + self.drafts


@dataclass
class Desk:
    """Steps over a real page manager, without models. What the caches would hold is the lease's length."""

    manager: PageManager
    limits: Limits
    waiting: WaitingQueue[Job] = field(default_factory=WaitingQueue)
    seated: list[Job] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)
    resting: bool = False

    def seat(self, job: Job, spare: int) -> bool:
        lease = self.manager.open(job.tokens[: job.goal])
        if not self.manager.reserve(lease, job.goal + 1 + job.drafts, spare):
            self.manager.close(lease)
            return False
        job.lease, job.read = lease, 0
        return True

    def reserve(self, job: Job, positions: int) -> bool:
        assert job.lease is not None
        granted = self.manager.reserve(job.lease, positions)
        if not granted:
            self.refused.add(job.key)
        return granted

    def unseat(self, job: Job) -> None:
        assert job.lease is not None
        self.manager.close(job.lease)
        job.lease = None

    def step(self) -> Step[Job]:
        self.refused.clear()
        step = plan_step(self.seated, self.waiting, self.limits, self, self.resting)
        self.seated = [job for job in self.seated if job not in step.preempted] + step.entered
        for job in step.decodes:
            self._round(job)
        for chunk in step.prefills:
            self._read(chunk.request, chunk.first, chunk.count)
        for job in [job for job in self.seated if job.said >= job.outputs]:
            self.unseat(job)
            self.seated.remove(job)
        return step

    def _round(self, job: Job) -> None:
        assert job.lease is not None
        job.lease.check_write(job.computed)
        assert job.computed + 1 + job.drafts <= job.lease.table.count * PAGE
        accepted = min(job.luck, job.drafts, job.outputs - job.said - 1)
        job.said += accepted + 1
        self.manager.commit(job.lease, job.tokens[job.computed : job.computed + accepted + 1])

    def _read(self, job: Job, first: int, count: int) -> None:
        assert job.lease is not None
        job.lease.check_write(first)
        assert first == job.computed
        self.manager.commit(job.lease, job.tokens[first : first + count])
        job.read += count
        if job.computed == len(job.prompt) and not job.said:
            job.said = 1


def desk(*jobs: Job, pages: int = 100, resting: bool = False, **limits: int) -> Desk:
    made = Desk(PageManager(pages, page=PAGE), Limits(**limits), resting=resting)
    for job in jobs:
        made.waiting.put(job)
    return made


def decoding(key: int, drafts: int = 2) -> Job:
    return Job(key, [key] * 4, outputs=100, drafts=drafts)


def counts(step: Step[Job]) -> dict[int, int]:
    return {chunk.request.key: chunk.count for chunk in step.prefills}


def test_prompts_are_read_in_chunks_the_oldest_first() -> None:
    steps = desk(Job(0, [7] * 20), Job(1, [8] * 5), Job(2, [9] * 9), max_batched_tokens=20)
    assert counts(steps.step()) == {0: 8, 1: 5, 2: 7}
    assert counts(steps.step()) == {0: 8, 2: 2}
    assert counts(steps.step()) == {0: 4}


def test_decoding_goes_on_while_a_long_prompt_is_read() -> None:
    steps = desk(decoding(0), decoding(1))
    steps.step()
    steps.waiting.put(Job(2, [7] * 40))
    for count in (8, 8, 8, 8, 8):
        step = steps.step()
        assert [job.key for job in step.decodes] == [0, 1]
        assert (counts(step), step.drafts) == ({2: count}, 32 - 2 - count)


def test_prompts_get_what_drafts_do_not_want_but_always_one_chunk() -> None:
    long = [Job(key, [key] * 30) for key in (2, 3)]
    few = desk(decoding(0, drafts=6), max_batched_tokens=24)
    many = desk(decoding(0, drafts=6), decoding(1, drafts=16), max_batched_tokens=24)
    for steps, expected, drafts in ((few, {2: 8, 3: 8}, 7), (many, {2: 8}, 14)):
        steps.step()
        for job in long:
            steps.waiting.put(job)
        step = steps.step()
        assert (counts(step), step.drafts) == (expected, drafts)


@pytest.mark.parametrize(("resting", "read", "drafts"), [(False, 10, 12), (True, 20, 2)])
def test_where_rounds_rest_prompts_take_the_rows_of_drafts_but_one_each(resting: bool, read: int, drafts: int) -> None:
    steps = desk(decoding(0, drafts=6), decoding(1, drafts=6), max_requests=5, max_batched_tokens=24)
    steps.step()
    steps.resting = resting
    for key in (2, 3, 4):
        steps.waiting.put(Job(key, [key] * 40))
    step = steps.step()
    assert (sum(counts(step).values()), step.drafts, step.open) == (read, drafts, 12)


def test_nobody_rests_more_than_there_is_to_read() -> None:
    steps = desk(decoding(0, drafts=6), resting=True)
    steps.step()
    assert (steps.step().drafts, steps.step().open) == (31, 31)


def test_seats_are_limited() -> None:
    steps = desk(*[decoding(key) for key in range(6)])
    assert len(steps.step().entered) == 4
    assert len(steps.step().decodes) == 4
    assert len(steps.waiting) == 2


def test_nobody_overtakes_a_prompt_that_does_not_fit_yet() -> None:
    steps = desk(decoding(0), Job(1, [1] * 30), Job(2, [2]), pages=18)
    assert [job.key for job in steps.step().entered] == [0]
    assert steps.step().entered == []
    assert [job.key for job in (steps.waiting.pop(), steps.waiting.pop())] == [1, 2]


def test_newcomers_leave_a_page_for_everybody_seated() -> None:
    steps = desk(decoding(0), decoding(1), pages=8)  # 4 pages each: 4 of prompt, 1 anchor, 2 drafts
    assert [job.key for job in steps.step().entered] == [0]
    steps = desk(decoding(0), decoding(1), pages=9)
    assert [job.key for job in steps.step().entered] == [0, 1]


def test_the_youngest_sits_out_before_it_gives_way_and_waits_at_the_head() -> None:
    old, young, last = decoding(0), decoding(1), decoding(2)
    steps = desk(old, young, last, pages=9)
    for _ in range(3):
        assert steps.step().preempted == []
    assert (old.computed, young.computed) == (6, 6)
    step = steps.step()  # the last page goes to the older one
    assert (step.decodes, step.preempted, young.computed) == ([old], [], 6)
    assert steps.step().decodes == [old]
    step = steps.step()
    assert (step.decodes, step.preempted, step.entered) == ([old], [young], [])
    assert steps.waiting.head is young
    assert steps.manager.open([*young.tokens[: young.goal]]).hit == 4


def test_a_request_that_returns_reads_only_what_was_given_up() -> None:
    steps = desk(decoding(0), Job(1, [1] * 6, outputs=9), pages=30)
    for _ in range(4):
        steps.step()
    job = steps.seated.pop()
    steps.unseat(job)
    steps.waiting.put(job)
    assert (job.said, job.goal) == (4, 9)
    assert counts(steps.step()) == {1: 1}


def test_pages_that_nobody_seated_holds_are_a_fault() -> None:
    steps = desk(decoding(0), pages=8)
    steps.step()
    assert steps.manager.reserve(steps.manager.open([5]), 8)
    assert [steps.step().decodes for _ in range(2)]
    with pytest.raises(AssertionError, match="somebody without one holds some"):
        steps.step()


jobs = st.builds(
    Job,
    key=st.just(0),
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=14),
    outputs=st.integers(1, 8),
    drafts=st.integers(0, 3),
    luck=st.integers(0, 3),
)


@settings(max_examples=80)
@given(data=st.data(), crowd=st.lists(jobs, min_size=1, max_size=8), chunk=st.integers(1, 6), caching=st.booleans())
def test_random_crowds(data: st.DataObject, crowd: list[Job], chunk: int, caching: bool) -> None:
    for key, job in enumerate(crowd):
        job.key = key
    requests = data.draw(st.integers(1, 4), "requests")
    limits = Limits(requests, data.draw(st.integers(requests, 16), "rows"), chunk)
    longest = -(-max(job.longest for job in crowd) // PAGE)
    pages = data.draw(st.integers(longest, 2 * longest + 2), "pages")
    steps, coming = Desk(PageManager(pages, PAGE, caching), limits), list(crowd)
    patience = sum(job.longest for job in crowd) + 2 * len(crowd)
    while coming or steps.seated or steps.waiting:
        for _ in range(data.draw(st.integers(0 if steps.seated or steps.waiting else 1, 2), "arrivals")):
            if coming:
                steps.waiting.put(coming.pop(0))
        if steps.waiting and data.draw(st.integers(0, 9), "abort") == 0:
            steps.waiting.remove(steps.waiting.head)
        steps.resting = data.draw(st.booleans(), "resting")
        check_step(steps)
        patience -= 1
        assert patience > 0, "a request starves"
    assert steps.manager.used == 0


def check_step(steps: Desk) -> None:
    """One step, and everything that is promised of it."""
    limits, before = steps.limits, {job.key: job.computed for job in steps.seated}
    goals = {job.key: job.goal for job in steps.seated}
    unfinished = [*steps.seated, *([steps.waiting.head] if steps.waiting else [])]
    oldest = min(unfinished, key=lambda job: job.key, default=None)
    step = steps.step()
    rows = len(step.decodes) + sum(chunk.count for chunk in step.prefills)
    assert rows + step.drafts == limits.max_batched_tokens
    assert step.drafts >= 0
    assert len(steps.seated) <= limits.max_requests
    part = [job.key for job in step.decodes] + [chunk.request.key for chunk in step.prefills]
    assert len(part) == len(set(part))
    assert oldest is None or oldest.key in part, "the oldest request moves on in every step"
    assert all(0 < chunk.count <= limits.prefill_chunk for chunk in step.prefills)
    assert all(chunk.first == before[chunk.request.key] for chunk in step.prefills if chunk.request.key in before)
    gone = {job.key for job in step.preempted}
    ready = {key for key in before if before[key] >= goals[key]} - gone
    assert {job.key for job in step.decodes} <= ready
    assert ready - {job.key for job in step.decodes} <= steps.refused, "decoding stalls although there are pages"
    assert [job.key for job in step.entered] == sorted(job.key for job in step.entered)
    assert not (gone and step.entered)
    if steps.waiting and steps.seated:
        assert max(job.key for job in steps.seated) < steps.waiting.head.key, "somebody overtook"
    for job in steps.seated:
        if job.computed >= job.goal and job.lease is not None and job.said == 1:
            assert job.read + job.lease.hit == len(job.prompt), "a position was read twice or never"
