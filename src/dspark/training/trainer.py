"""The training run: answers in, a drafter out, resumable after a kill at any moment."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch import Tensor

from dspark.data.answers import Answer, AnswerSplit
from dspark.drafters.drafter_module import DrafterModule
from dspark.errors import ConfigError, EndpointError
from dspark.targets.registry import parse_dtype
from dspark.training.algorithms.registry import algorithm_named
from dspark.training.batches import Batch, batch_indices, draw_anchors, gather_batch, make_batch, taught_tokens
from dspark.training.checkpoints import Checkpoints
from dspark.training.export import Measured
from dspark.training.forced_loss import Objective
from dspark.training.identity import identity_of
from dspark.training.metrics_log import MetricsLog
from dspark.training.on_policy import OnPolicyProbe
from dspark.training.optimiser import build_optimiser
from dspark.training.progress import Progress, Watcher
from dspark.training.recipe import Recipe
from dspark.training.replica import replica_of
from dspark.training.resume import STABLE, STATE, resume_point
from dspark.training.state import TrainingState, load_state, read_state, save_state
from dspark.training.step import DivergenceError, StepResult, evaluate_step, train_step
from dspark.training.stopping import BadSteps, Best
from dspark.training.teacher import Teacher
from dspark.training.world import ALONE, World


@dataclass(frozen=True, slots=True)
class Cadence:
    """How often a run evaluates (steps; None: as the recipe says) and saves its state (seconds)."""

    evaluate_steps: int | None = None
    save_seconds: float = 180.0


class Trainer:
    """Runs a recipe in `directory`: `state/` to resume from, `stable/` before the cool-down, `metrics.jsonl`, `best/`.

    With a `probe`, evaluations also decode, and its tau is the accepted length that counts. Every random choice
    depends on (seed, step) alone, so a resumed run repeats an uninterrupted one bit for bit.

    Every process of a `world` has a trainer of the same recipe, and all do the same in the same order. The leading one
    alone measures, writes and is watched.
    """

    def __init__(
        self,
        recipe: Recipe,
        drafter: DrafterModule,
        teacher: Teacher,
        answers: AnswerSplit,
        directory: Path,
        cadence: Cadence = Cadence(),
        watch: Watcher = lambda progress: None,
        probe: OnPolicyProbe | None = None,
        world: World = ALONE,
    ) -> None:
        check_division(recipe, len(answers.train), world)
        self.recipe = recipe
        self.drafter = drafter
        self.world = world
        self.replica = replica_of(drafter, world)
        self.teacher = teacher
        self.answers = answers
        self.directory = directory
        self.cadence = cadence
        self.watch = watch
        self.probe = probe
        self.log = MetricsLog(directory)
        self.best, self.bad = Best(), BadSteps()
        self.objective = _objective(recipe)
        self.loss = algorithm_named(recipe.algorithm).loss
        self.optimiser = build_optimiser(recipe.optimiser, drafter)
        self.step = 0
        self._cooldown_start: int | None = None
        self._lengths = [len(answer.token_ids) for answer in answers.train]
        self._draft_index = draft_index(drafter)
        self._held_out_batch: Batch | None = None
        self._measured: tuple[int, Measured] | None = None

    def run(self) -> int:
        """Train to the recipe's last step, or in the main thread until SIGINT / SIGTERM; save; return the step."""
        self.directory.mkdir(parents=True, exist_ok=True)
        resumed = self.step = self._resume()
        saved = time.monotonic()
        with _stop_requests() as stop_requested:
            stop = False
            while not self.finished and not stop:
                self._keep_uncooled()
                self._advance_or_keep()
                due = time.monotonic() - saved > self.cadence.save_seconds
                stop, due = self.world.any(stop_requested(), due)
                if due:
                    self._save(STATE)
                    saved = time.monotonic()
        if self.step != resumed:
            self._save(STATE)
        return self.step

    @property
    def stopped_early(self) -> bool:
        """Whether the run ended, or would end, because its accepted length has not risen for long."""
        return self.best.exhausted(self.recipe.evaluation.patience)

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do: at the last step, or stopped early."""
        return self.step >= self.recipe.optimiser.total_steps or self.stopped_early

    def _advance_or_keep(self) -> None:
        """A step; where a server's hidden states fail to come, the steps before it are saved first."""
        step = self.step
        try:
            self._advance()
        except EndpointError as error:
            # States come before anything changes. Several processes would have to agree that this happened to one.
            if self.world.group is not None or self.step != step or step == 0:
                raise
            self._save(STATE)
            raise EndpointError(
                f"{str(error).rstrip('.')}. {step} steps are saved; the same command goes on"
            ) from error

    def _advance(self) -> None:
        started, started_cpu = time.monotonic(), time.process_time()
        optimiser = self.recipe.optimiser
        rate = optimiser.rate(self.step)
        result, skipped = self._train(self.batches(self.step), rate)
        if optimiser.cools(self.step):
            self._cooldown_start = optimiser.cooldown_start
        self.step += 1
        every = self.cadence.evaluate_steps or self.recipe.evaluation.every_steps
        due = self.step % every == 0 or self.step == optimiser.total_steps
        measured = self.measure() if due else Measured()
        if due:
            self._rank(measured)
        progress = Progress(
            self.step, optimiser.total_steps, result, measured.held_out, time.monotonic() - started,
            measured.on_policy, time.process_time() - started_cpu, rate, self.best, self.bad, skipped,
        )  # fmt: skip
        if self.world.leads:
            self.log.append({"time": time.time(), **progress.row()})
        if due:
            self._keep(measured)
        if self.world.leads:
            self.watch(progress)
        self.bad.check(optimiser.max_bad_steps, skipped)

    def _rank(self, measured: Measured) -> None:
        """Tell every process the accepted length that the leading one measured: it decides when to stop."""
        tau = measured.tau
        told = torch.tensor([0.0 if tau is None else 1.0, tau or 0.0], dtype=torch.float64)
        known, value = self.world.sum(told).tolist()
        if known:
            self.best = self.best.after(self.step, value)

    def _keep(self, measured: Measured) -> None:
        with self.replica.whole():
            if measured.tau is not None:
                self._checkpoints.evaluated(self.drafter, self.step, measured, self.best)
            self.world.wait()

    def _train(self, batches: Iterator[Batch], rate: float) -> tuple[StepResult | None, str]:
        """A step's figures; or None and why, if it was not finite and so changed nothing."""
        clip = self.recipe.optimiser.clip
        try:
            result = train_step(
                self.replica, self.optimiser, batches, self.objective, rate, clip, self.loss, self.world
            )
        except DivergenceError as error:
            self.bad = self.bad.bad()
            return None, str(error)
        self.bad = self.bad.good()
        return result, ""

    def measure(self) -> Measured:
        """Everything that evaluations measure, at the present step; measured once, and by the leading process alone."""
        if self._measured is None or self._measured[0] != self.step:
            with self.replica.whole():
                self._measured = (self.step, self._measure() if self.world.leads else Measured())
                self.world.wait()
        return self._measured[1]

    def _measure(self) -> Measured:
        on_policy = None if self.probe is None else self.probe(self.drafter)
        return Measured(self.evaluate(), on_policy)

    def evaluate(self) -> StepResult | None:
        """Teacher-forced figures on the held-out answers at the full block size, None without such answers."""
        if not self.answers.held_out:
            return None
        if self._held_out_batch is None:
            gamma = self.recipe.drafter.block_size
            records = [self.teacher.records([answer])[0] for answer in self.answers.held_out]
            self._held_out_batch = make_batch(self.answers.held_out, records, 32, gamma, self._draft_index, 0)
        return evaluate_step(self.drafter, self._held_out_batch, self.objective, self.loss)

    def batches(self, step: int) -> Iterator[Batch]:
        """This process's micro-batches of `step`, each made when its turn comes."""
        data, seed = self.recipe.data, self.recipe.seed
        chosen = batch_indices(len(self.answers.train), data.answers_per_step, self._lengths, seed, step)
        answers = [self.answers.train[index] for index in chosen]
        places = draw_anchors(answers, data.anchors_per_answer, seed * 1_000_003 + step)
        parts, gamma = self.world.size * data.micro_batches, self.recipe.block_size(step)
        for part in self.world.parts(data.micro_batches):
            yield self._gather(answers[part::parts], places[part::parts], gamma)

    def _gather(self, answers: list[Answer], places: list[Tensor], gamma: int) -> Batch:
        taught = [taught_tokens(answer, own, gamma) for answer, own in zip(answers, places, strict=True)]
        return gather_batch(answers, self.teacher.records(answers, taught), places, gamma, self._draft_index)

    def _resume(self) -> int:
        point = resume_point(self.directory, self.recipe, self.teacher.target.info)
        state = None if point is None else load_state(point.directory, self.drafter, self.optimiser, self.world)
        if state is None:
            state = TrainingState(0)
        self._cooldown_start = state.cooldown_start
        self.bad = BadSteps(state.skipped, state.skipped_in_a_row)
        if self.world.leads:
            self.log.keep_until(state.step)
        self.world.wait()
        self.best = Best.of(self.log.rows())
        return state.step

    def _keep_uncooled(self) -> None:
        """Before the first step that cools the weights, keep them, unless later ones are kept already."""
        if self._cooldown_start is not None or not self.recipe.optimiser.cools(self.step):
            return
        stable = read_state(self.directory / STABLE)
        if stable is None or stable.step < self.step:
            self._save(STABLE)

    def _save(self, name: str) -> None:
        identity = identity_of(self.recipe, self.teacher.target.info)
        kept = self.drafter.draft_token_ids
        state = TrainingState(self.step, self._cooldown_start, identity, kept, self.bad.total, self.bad.in_a_row)
        save_state(self.directory / name, self.drafter, self.optimiser, state, self.world)

    @property
    def _checkpoints(self) -> Checkpoints:
        return Checkpoints(self.directory, self.recipe, self.teacher.target.info)


def check_division(recipe: Recipe, answers: int, world: World) -> None:
    """Raises ConfigError when a step has too few answers for every micro-batch of every process to get one."""
    parts, found = world.size * recipe.data.micro_batches, min(recipe.data.answers_per_step, answers)
    if found < parts:
        raise ConfigError(
            f"A step of {found} answers cannot be divided in {world.size} processes x {recipe.data.micro_batches} "
            f"micro-batches. Raise data.answers_per_step to {parts} or more, or lower data.micro_batches."
        )


def _objective(recipe: Recipe) -> Objective:
    coefficients = recipe.loss.coefficients(recipe.drafter.block_size)
    return Objective(coefficients, recipe.loss.vocabulary_chunk, parse_dtype(recipe.precision))


def draft_index(drafter: DrafterModule) -> Tensor | None:
    """Draft id [V] of every target id, -1 outside; None without a pruned vocabulary."""
    if drafter.draft_token_ids is None:
        return None
    index = torch.full((drafter.info.vocab_size,), -1)
    index[drafter.draft_token_ids] = torch.arange(len(drafter.draft_token_ids))
    return index


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn SIGINT and SIGTERM into a question that the loop asks between steps, so that no step is cut in half.

    Off the main thread Python delivers no signals, and the answer is always no.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    requested = False

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        requested = True

    previous = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: requested
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
