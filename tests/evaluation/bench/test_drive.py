"""Driven on a simulated clock: what is measured is what the engine was made to do, and nothing gets lost unnoticed."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dspark.engine.events import Event
from dspark.errors import EngineError
from dspark.evaluation.bench.arrivals import Bursty, Poisson
from dspark.evaluation.bench.drive import drive
from dspark.evaluation.bench.load import Closed, Open
from dspark.evaluation.bench.run_figures import RunFigures, run_figures
from dspark.evaluation.bench.trace import Run
from dspark.evaluation.bench.workload import Workload
from dspark.types import SamplingParams
from tests.evaluation.bench.simulated import Clock, SimulatedCore

PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)
PROMPTS = [[1] * n for n in (3, 5, 8)]


def closed(users: int, requests: int = 40, **changes: object) -> Workload:
    return replace(Workload(Closed(users), PROMPTS, PARAMS, requests, warmup=users), **changes)  # type: ignore[arg-type]


def run(workload: Workload, seed: int = 0, **engine: object) -> tuple[Run, RunFigures]:
    clock = Clock()
    found = drive(SimulatedCore(clock, **engine), workload, seed, clock, clock.wait)  # type: ignore[arg-type]
    return found, run_figures(found)


def test_figures_by_hand() -> None:
    """One user, steps of 2 s: 20 tokens take 20 steps; the window holds four whole answers."""
    found, figures = run(closed(1, 4), step=2.0)
    assert [trace.latency for trace in found.measured] == [40.0] * 4
    assert [trace.first_token_seconds for trace in found.measured] == [2.0] * 4
    assert figures.window_seconds == 160.0
    assert figures.window_tokens == 80
    assert figures.tokens_per_second == figures.user_tokens_per_second_p50 == 0.5
    assert figures.user_decode_tokens_per_second_p50 == 19 / 38
    assert figures.decode_tokens_per_second == 0.5  # of the 19 steps in 20 that read no prompt
    assert figures.requests_per_second == 4 / 160
    assert (figures.steps, figures.step_seconds, figures.requests, figures.mean_in_flight) == (80, 2.0, 4, 1.0)
    assert figures.tau == 1.0


def test_prompts_slow_down_the_whole_and_not_the_decoding() -> None:
    _, figures = run(closed(1, 3), step=1.0, per_token=1.0)
    assert figures.decode_tokens_per_second == 0.5  # a step of one token takes 2 s
    assert figures.tokens_per_second == pytest.approx(60 / (3 * 19 * 2 + 3 + 16), abs=0.02)  # 16 tokens of prompts
    assert figures.prefill_tokens == 16


def test_drafts_are_counted_per_request_and_round() -> None:
    _, figures = run(closed(4), drafts=7, accepted=3)
    assert figures.tau == 4.0
    assert figures.drafted_per_request == figures.verified_per_request == 7.0
    assert figures.accepted_per_request == 3.0
    assert figures.drafting_share == 1.0
    assert figures.observed_survival == 3 / 7
    assert (figures.predicted_survival, figures.predicted_over_real_seconds) == (0.5, 2.0)
    shares = figures.draft_share, figures.verify_share, figures.schedule_share, figures.other_share
    assert shares == (0.25, 0.5, 0.125, 0.125)
    assert figures.budget == pytest.approx(7 * figures.requests_per_step)


def test_an_engine_that_is_twice_as_fast_is_reported_so() -> None:
    for load in (closed(1), closed(8), closed(70)):
        slow, fast = (run(load, step=step, per_token=step / 10)[1] for step in (1.0, 0.5))
        assert fast.tokens_per_second == pytest.approx(2 * slow.tokens_per_second)
        assert fast.user_tokens_per_second_p50 == pytest.approx(2 * slow.user_tokens_per_second_p50)
        assert fast.latency_seconds_p95 == pytest.approx(slow.latency_seconds_p95 / 2)


@pytest.mark.parametrize("users", [1, 2, 8, 64])
def test_all_users_are_busy_from_the_start_of_the_window_to_its_end(users: int) -> None:
    _, figures = run(closed(users, 3 * users))
    assert figures.mean_in_flight == pytest.approx(users)
    assert figures.tokens_per_second == pytest.approx(users, rel=1e-9)  # a token a step, 1 s each
    assert figures.waiting == 0


SHORT = replace(PARAMS, max_tokens=4)
LOADS = [
    *(closed(users, 400, params=SHORT) for users in (3, 20, 80)),
    *(Workload(Open(Poisson(rate)), PROMPTS, SHORT, 800, 20) for rate in (1.0, 4.0)),
    Workload(Open(Bursty(2.0)), PROMPTS, SHORT, 1200, 20),
]


@pytest.mark.parametrize("workload", LOADS, ids=lambda one: f"{one.load.kind} {one.load.users or one.load.rate}")
def test_littles_law(workload: Workload) -> None:
    """Requests in flight are their rate times their latency; within 5 %, as both ends of the window cut some."""
    _, figures = run(workload, step=0.5, per_token=0.01, slots=32)
    assert figures.mean_in_flight == pytest.approx(figures.requests_per_second * figures.latency_seconds_mean, rel=0.05)


def test_an_open_loop_that_keeps_up_is_as_fast_as_it_is_asked_to_be() -> None:
    """1,000 requests arrive at their rate within 4 standard errors; the engine could do twice as many."""
    workload = Workload(Open(Poisson(5.0)), PROMPTS, SHORT, 1000, 20)
    _, figures = run(workload, step=0.5, slots=20)
    assert figures.requests_per_second == pytest.approx(5.0, rel=4 / 1000**0.5)
    assert figures.tokens_per_second == pytest.approx(20.0, rel=4 / 1000**0.5)


def test_an_open_loop_beyond_saturation_gives_what_the_engine_can_and_users_wait() -> None:
    workload = Workload(Open(Poisson(4.0)), PROMPTS, PARAMS, 200, 50)
    _, figures = run(workload, step=0.5, slots=20)  # 40 tokens, hence 2 requests a second
    assert figures.tokens_per_second == pytest.approx(40.0, rel=0.01)
    assert figures.first_token_seconds_p50 > 10 * 0.5


def test_waiting_counts_from_the_arrival_not_from_when_the_engine_had_time() -> None:
    """Steps of 10 s, an arrival about every second: on average a request has waited half a step when it begins."""
    workload = Workload(Open(Poisson(1.0)), PROMPTS, replace(PARAMS, max_tokens=1), 2000, 10)
    _, figures = run(workload, step=10.0)
    assert figures.first_token_seconds_p50 == pytest.approx(15.0, abs=0.5)


def test_everything_is_timed_where_nothing_keeps_the_load_up() -> None:
    """Eight requests of four users, two waves of 20 steps."""
    found, figures = run(closed(4, 8, warmup=0, steady=False))
    assert (len(found.everyone), figures.window_seconds, figures.tokens_per_second) == (8, 40.0, 4.0)


def test_the_engine_is_left_idle_and_asked_for_no_more_than_the_load_needs() -> None:
    clock = Clock()
    core = SimulatedCore(clock)
    drive(core, closed(5, 10), 0, clock, clock.wait)
    assert core.idle
    assert 15 <= len(core.asked) <= 20


def test_arms_are_asked_the_same() -> None:
    asked = []
    for step in (1.0, 0.3):
        clock = Clock()
        core = SimulatedCore(clock, step=step)
        drive(core, closed(3), 5, clock, clock.wait)
        asked.append([(one.prompt, one.limit, one.salt, one.seed) for one in core.asked])
    shared = min(map(len, asked))
    assert asked[0][:shared] == asked[1][:shared]


def test_progress_rises_to_the_measured_requests() -> None:
    clock, seen = Clock(), list[int]()
    drive(SimulatedCore(clock), closed(3, 7), 0, clock, clock.wait, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 7


def test_an_answer_may_end_by_itself() -> None:
    def stop_early(events: list[Event]) -> list[Event]:
        return [replace(event, finish_reason="stop") if event.finish_reason else event for event in events]

    workload = closed(2, 4, params=replace(PARAMS, ignore_eos=False))
    assert run(workload, spoil=stop_early)[0].measured[0].reason == "stop"


class Once:
    """Changes the events of the thirtieth step."""

    def __init__(self, change: Callable[[list[Event]], Sequence[Event]]) -> None:
        self.change, self.steps = change, 0

    def __call__(self, events: list[Event]) -> list[Event]:
        self.steps += 1
        return list(self.change(events)) if self.steps == 30 else events


def last_of(events: list[Event]) -> Event:
    return next((event for event in events if event.finish_reason), events[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda events: [], "its result holds 20"),
        (lambda events: [*events, replace(events[0], request_id=999)], "999, which is unknown"),
        (lambda events: [*events, replace(events[0], finish_reason="abort")], "nobody asked for that: lost"),
        (lambda events: [replace(event, token_ids=(7,) * 9) for event in events], "its result holds 20"),
        (lambda events: [*events, replace(events[0], finish_reason="length")], "20 were asked for"),
        (lambda events: [*events, replace(events[0], finish_reason="length", token_ids=(7,) * 30)], "20 were asked"),
    ],
    ids=["tokens lost", "stranger", "given up", "doubled", "short", "long"],
)
def test_broken_promises_are_noticed(change: Callable[[list[Event]], Sequence[Event]], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        run(closed(2, 10), spoil=Once(change))


def test_a_request_that_never_ends_is_noticed() -> None:
    def swallow(events: list[Event]) -> list[Event]:
        return [event for event in events if not event.finish_reason]

    with pytest.raises(EngineError, match="requests 1, 2 never ended: lost"):
        run(closed(2, 4), spoil=swallow)


def test_an_engine_that_turns_on_the_spot_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspark.evaluation.bench.drive.SILENT_STEPS", 100)
    with pytest.raises(EngineError, match="100 steps in a row; requests 1, 2 still wait"):
        run(closed(2, 4, params=replace(PARAMS, max_tokens=10**5)), spoil=lambda events: [])


def test_ids_are_never_reused_and_aborted_requests_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    core = SimulatedCore(clock)
    core.add = lambda *args, **named: 5  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="request id 5 twice"):
        drive(core, closed(2), 0, clock, clock.wait)
    monkeypatch.setattr("dspark.evaluation.bench.drive.SILENT_STEPS", 100)
    core = SimulatedCore(clock)
    core.abort = lambda request_id: core.running[request_id].__setattr__("limit", 10**9)  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="aborted, the engine still runs"):
        drive(core, closed(2, 3), 0, clock, clock.wait)
