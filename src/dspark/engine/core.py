"""The engine: requests enter and leave at any step, and every step is one forward over the tokens of all of them.

A step admits who waits, lets the drafters propose, asks the scheduler how many drafts are worth verifying, runs the
target once over anchors, drafts and chunks of prompts alike (section 5.3 of the paper), judges, and commits.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Real

import torch

from dspark.engine.engine_options import EngineOptions
from dspark.engine.events import Event, StepStats
from dspark.engine.features import FeatureRows
from dspark.engine.hibernation import Hibernation
from dspark.engine.memory import EngineMemory
from dspark.engine.options import DecodeOptions
from dspark.engine.request import Request
from dspark.engine.result import Commit, FinishReason, GenerationResult, Times
from dspark.engine.round_planner import RoundPlanner
from dspark.engine.runner import Commits, Ran, Runner
from dspark.engine.running import Running
from dspark.engine.step_plan import Step, plan_step
from dspark.engine.stops import Detokeniser
from dspark.engine.stopwatch import Clock, Stopwatch
from dspark.engine.strategy import PLAIN, Strategy
from dspark.engine.waiting import WaitingQueue
from dspark.errors import ConfigError
from dspark.scheduling.cost import CostModel
from dspark.scheduling.cost_table import CostTable
from dspark.scheduling.online_cost import OnlineCost, RoundTiming
from dspark.types import SamplingParams, Target

ACTIVITIES = ("draft", "verify", "schedule", "other")


class EngineCore:
    """Decodes many requests at once. One thread owns it: `add` and `abort` at any time, `step` until `idle`.

    `strategies` are what requests may choose from, by name; plain decoding is always among them, and "auto" is the
    last. `cost` is what rounds cost here (None: nothing is trimmed, with a warning).

    Raises:
        ConfigError: options cannot be, or no strategy has the name of `options.strategy`.
    """

    def __init__(
        self,
        target: Target,
        strategies: Sequence[Strategy] = (),
        options: EngineOptions | None = None,
        cost: CostModel | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.options = EngineOptions() if options is None else options
        self.target, self.clock = target, clock
        self._strategies = {strategy.name: strategy for strategy in (PLAIN, *strategies)}
        self._strategy(None)
        self.memory = EngineMemory(target, self._strategies.values(), self.options)
        self._watch = Stopwatch(clock)
        features = FeatureRows(self._strategies.values(), target.info.hidden_size)
        self._cost = OnlineCost(cost) if isinstance(cost, CostTable) and self.options.follow_cost else None
        planner, most = RoundPlanner.of(self.options, self._cost or cost), self.options.max_batched_tokens
        gamma = max((one.drafter.info.gamma for one in strategies if one.drafter is not None), default=1)
        self._runner = Runner(target, self.memory, features, planner, self._watch, most, gamma)
        self._hibernation = Hibernation(planner, gamma)
        self.last: StepStats | None = None
        self._resting = False
        self._waiting: WaitingQueue[Running] = WaitingQueue()
        self._requests: dict[int, Running] = {}
        self._began: dict[int, Mapping[str, float]] = {}
        self._next_key = 0
        self._untold: list[Event] = []

    @property
    def idle(self) -> bool:
        """Whether nothing is left to do, and no event is left to tell."""
        return not self._requests and not self._untold

    def add(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        *,
        strategy: str | None = None,
        deadline: float | None = None,
        salt: str = "",
        detokeniser: Detokeniser | None = None,
    ) -> int:
        """Queue a request and return its number, which is never used again.

        `deadline` is a time of the engine's clock: what is not finished by then ends as it is. Prefixes are shared
        among requests of the same `salt` only.

        Raises:
            ConfigError: parameters, prompt, strategy, deadline or salt cannot be used.
            CapacityError: the request can never fit.
        """
        check_time("deadline", deadline)
        if not isinstance(salt, str):
            raise ConfigError(f"salt is {salt!r:.60}; expected a text")
        chosen = self._strategy(strategy)
        decode = DecodeOptions(rule=self.options.rule, greedy_drafts=self.options.greedy_drafts, lookup=chosen.lookup)
        request = Request(self.target.info, chosen.drafter, decode, prompt_ids, params, detokeniser)
        running = Running(self._next_key, request, chosen, deadline, salt)
        self.memory.check_fits(running)
        self._next_key += 1
        if self._hibernation.asleep:
            running.sleep()
        try:
            self._requests[running.key] = running
            self._waiting.put(running)
        except BaseException:  # Ctrl-C: a request that is known but does not wait would never end
            self._requests.pop(running.key, None)
            with suppress(KeyError):
                self._waiting.remove(running)
            raise
        return running.key

    def abort(self, request: int) -> None:
        """End a request now, and tell so in the next step. A number that is done or unknown changes nothing."""
        if request in self._requests:
            self._stop(self._requests[request], "abort")

    @torch.inference_mode()
    def step(self) -> list[Event]:
        """One step; what it gave the requests that it changed, and which ended since the last one.

        What cannot be drawn for one request ends that one, with the reason "error". If a step raises, its requests are
        as they were and can go on or be aborted, and what it has to tell nevertheless is told by the next one.
        """
        self._watch.start()
        before = dict(self._watch.seconds)
        for running in [one for one in self._requests.values() if one.late(self.clock())]:
            self._stop(running, "deadline")
        seated = [running for running in self._requests.values() if running.seated]
        if self.options.hibernate:
            self._hibernate(seated)
        step = plan_step(seated, self._waiting, self.options, self.memory, self._resting)
        if not self._hibernation.asleep:
            for running in step.preempted:
                running.wake()
        for running in step.entered:
            self._began.setdefault(running.key, before)
        commits: Commits = []
        try:
            ran = self._runner.run(step, commits)
        finally:
            for running, commit in commits:
                self._untold.append(self._tell(running, commit))
        self._watch.lap("other")
        self._resting = self._resting if ran.proposal.resting is None else ran.proposal.resting
        self.last = self._stats(ran, step, before)
        self._learn(ran, self.last)
        events, self._untold = self._untold, []
        return events

    def _hibernate(self, seated: list[Running]) -> None:
        """Put drafters away, or let requests have them again: of those in `seated` one after the other."""
        requests = list(self._requests.values())[: self.options.max_requests]
        if self._hibernation.look(requests):
            for running in self._requests.values():
                if self._hibernation.asleep:
                    running.sleep()
                elif not running.seated:
                    running.wake()
        if self._hibernation.rouses and any(running.asleep for running in seated):
            self._rouse(seated)

    def _rouse(self, seated: list[Running]) -> None:
        """Unless somebody waits or reads: let the first sleeper that lasts read its text again, with its drafter."""
        reading = self._waiting or any(running.computed < running.goal for running in seated)
        sleeper = next((running for running in seated if running.asleep and running.lasts), None)
        if sleeper is not None and not reading and self.memory.manager.available > len(seated):
            seated.remove(sleeper)
            self.memory.unseat(sleeper)
            sleeper.wake()
            self._waiting.put(sleeper)

    def _learn(self, ran: Ran, stats: StepStats) -> None:
        """Correct the cost table by a step that was a round and nothing else."""
        if self._cost is None or stats.requests == 0 or stats.prefill_tokens or stats.verify_seconds == 0:
            return
        timing = RoundTiming(
            tokens=stats.requests + stats.verified,
            context=ran.proposal.context,
            drafting=stats.drafting,
            verify_seconds=stats.verify_seconds,
            draft_seconds=stats.draft_seconds - ran.proposal.repaid,
            overhead_seconds=stats.schedule_seconds + stats.other_seconds,
            requests=stats.requests,
            share=ran.proposal.share,
        )
        self._cost.observe(timing)

    def _stats(self, ran: Ran, step: Step[Running], before: Mapping[str, float]) -> StepStats:
        seconds = _between(before, self._watch.seconds, ACTIVITIES)
        return StepStats(
            **ran.counts(),
            hit_tokens=step.hits,
            draft_seconds=seconds["draft"],
            verify_seconds=seconds["verify"],
            schedule_seconds=seconds["schedule"],
            other_seconds=seconds["other"],
            seconds=sum(seconds.values()),
            emitted=sum(len(commit.token_ids) for _, commit in ran.commits),
            asleep=sum(running.asleep for running in step.decodes),
            pages_used=self.memory.manager.used,
            waiting=len(self._waiting),
            preempted=len(step.preempted),
            finished=sum(running.request.output.finish_reason is not None for running, _ in ran.commits),
        )

    def _tell(self, running: Running, commit: Commit) -> Event:
        running.texts.append(commit.text)
        reason = running.finish_reason
        result = None if reason is None else self._leave(running, reason)
        return Event(running.key, commit.token_ids, commit.text, reason, result, commit.logprobs, running.error)

    def _stop(self, running: Running, reason: FinishReason) -> None:
        """End a request that did not end by itself."""
        self._untold.append(Event(running.key, (), "", reason, self._leave(running, reason)))

    def _leave(self, running: Running, reason: FinishReason) -> GenerationResult:
        if running.seated:
            self.memory.unseat(running)
        else:
            self._waiting.remove(running)
        del self._requests[running.key]
        began, spent = self._began.pop(running.key, self._watch.seconds), self._watch.seconds
        request = running.request
        return GenerationResult(
            token_ids=tuple(request.output.token_ids),
            text="".join(running.texts),
            finish_reason=reason,
            tally=request.tally,
            lookup_rounds=request.lookup_rounds,
            logprobs=tuple(request.logprobs),
            times=Times(**_between(began, spent, ("draft", "verify", "schedule"))),
            error=running.error,
        )

    def _strategy(self, name: object) -> Strategy:
        wanted = self.options.strategy if name is None else name
        if wanted == "auto":
            return list(self._strategies.values())[-1]
        if not isinstance(wanted, str) or wanted not in self._strategies:
            raise ConfigError(f"strategy {wanted!r} is unknown; this engine has {', '.join(self._strategies)}")
        return self._strategies[wanted]


def check_time(name: str, seconds: object) -> None:
    """Refuse what is no number of seconds, with a ConfigError; None is nothing to refuse."""
    number = type(seconds) is not bool and isinstance(seconds, Real) and not math.isnan(seconds)
    if seconds is not None and not number:
        raise ConfigError(f"{name} is {seconds!r:.60}; expected a number of seconds, or None for no limit")


def _between(before: Mapping[str, float], after: Mapping[str, float], activities: Sequence[str]) -> dict[str, float]:
    return {name: after.get(name, 0.0) - before.get(name, 0.0) for name in activities}
