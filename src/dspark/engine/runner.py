"""Runs the rounds of one step: propose, plan, one forward, judge, commit, and show the drafters what was kept.

Shapes: B requests with rounds, N rows of the forward, V vocabulary, d width, m taps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspark.engine.batch_sampler import BatchRound
from dspark.engine.checkpoint import Checkpoint
from dspark.engine.drafted_round import Group, Member, grouped
from dspark.engine.features import FeatureRows
from dspark.engine.judging import judge_each
from dspark.engine.memory import EngineMemory
from dspark.engine.owed import OwedFeatures
from dspark.engine.ragged import forward_ragged
from dspark.engine.result import Commit
from dspark.engine.round_planner import RoundPlanner, handed_on
from dspark.engine.running import Running
from dspark.engine.step_plan import Chunk, Step
from dspark.engine.stopwatch import Stopwatch
from dspark.errors import SamplingError
from dspark.scheduling.arrays import Floats
from dspark.scheduling.round import Batch, Outcome, Plan
from dspark.types import Target, TargetOutput, Verdict, as_ids

OWED = 256
"""Positions that drafters may be owed while the scheduler rests: one call for so many costs a fraction of many."""

Commits = list[tuple[Running, Commit]]
"""What requests were given, in order."""

Judged = Verdict | SamplingError
"""How a round went, or why nobody can say."""


@dataclass(slots=True)
class Proposal:
    """Drafts of every member, and how many of them go through the target; no plan where nobody may draft.

    `context` is the mean number of positions that a member's caches hold. `resting`: the scheduler would not draft in
    the room there was; None if it was not asked. `repaid` are seconds that went to what rounds before had left owed.
    """

    groups: list[Group] = field(default_factory=list)
    plan: Plan | None = None
    confidences: Floats | None = None
    lengths: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    context: float = 0.0
    resting: bool | None = None
    repaid: float = 0.0

    @property
    def drafting(self) -> int:
        """Members whose drafter ran."""
        return 0 if self.plan is None or not self.plan.drafts else sum(member.cap > 0 for member in self.members)

    @property
    def share(self) -> float:
        """How long blocks were, as the cost of drafting has it."""
        return 1.0 if self.plan is None else self.plan.batch.share

    @property
    def predicted_survival(self) -> float | None:
        """How many of the verified drafts were expected to survive; None if nobody asked for confidences."""
        if self.confidences is None:
            return None
        survival = np.cumprod(self.confidences, axis=1)
        return float(survival[np.arange(survival.shape[1]) < np.array(self.lengths)[:, None]].sum())

    @property
    def members(self) -> list[Member]:
        """All of them, group after group: the scheduler's rows."""
        return [member for group in self.groups for member in group.members]


@dataclass(slots=True)
class Rows:
    """The rows of the forward: whose they are, in order, and how many each has. `judged` have logits."""

    token_ids: list[int] = field(default_factory=list)
    owners: list[Running] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)

    def add(self, running: Running, tokens: Sequence[int], judged: int) -> None:
        """Append `tokens` of a request, the last `judged` of which have logits."""
        end = len(self.token_ids) + len(tokens)
        self.token_ids += tokens
        self.owners.append(running)
        self.counts.append(len(tokens))
        self.judged += range(end - judged, end)


@dataclass(frozen=True, slots=True)
class Ran:
    """What a step did: commits in order, the proposal, and the numbers accepted [B]."""

    commits: Commits
    proposal: Proposal
    accepted: list[int]
    prefill_tokens: int

    def counts(self) -> dict[str, Any]:
        """The fields of `StepStats` that it decides."""
        proposal, plan = self.proposal, self.proposal.plan
        verified = sum(proposal.lengths)
        return {
            "requests": len(proposal.lengths),
            "drafting": proposal.drafting,
            "prefill_tokens": self.prefill_tokens,
            "drafted": sum(proposal.drafted),
            "verified": verified,
            "accepted": sum(self.accepted),
            "budget": None if plan is None else plan.budget,
            "uniform": plan is not None and plan.uniform,
            "probe": plan is not None and plan.probe,
            "predicted_survival": proposal.predicted_survival,
            "predicted_seconds": None if plan is None else _expected(plan, verified),
        }


class Runner:
    """Everything that a step needs, beside who takes part in it. `gamma` is the most that any drafter drafts."""

    def __init__(
        self,
        target: Target,
        memory: EngineMemory,
        features: FeatureRows,
        planner: RoundPlanner,
        watch: Stopwatch,
        max_tokens: int,
        gamma: int,
    ) -> None:
        self._target, self._memory, self._features = target, memory, features
        self._planner, self._watch, self._max_tokens, self._gamma = planner, watch, max_tokens, gamma
        self._owed = OwedFeatures()

    def run(self, step: Step[Running], commits: Commits) -> Ran:
        """Do what `step` plans, and append to `commits` whatever is committed, even if something raises later.

        Then caches are as before, or as drafters were last shown them, and the requests can go on; who alone cannot be
        judged ends alone, with an `error`.
        """
        proposal = self._plan(step)
        if proposal.drafting and self._owed.rows:
            proposal.repaid = self._settle()  # before anything that could be taken back
        before = Checkpoint([*step.decodes, *(chunk.request for chunk in step.prefills)])
        try:
            return self._run(step, proposal, commits)
        except BaseException:
            before.restore()
            self._owed.forgive()
            raise

    def _run(self, step: Step[Running], proposal: Proposal, commits: Commits) -> Ran:
        prefill_tokens = sum(chunk.count for chunk in step.prefills)
        self._draft(proposal)
        rows = _rows(proposal, step.prefills)
        if not rows.token_ids:
            return Ran(commits, proposal, [], 0)
        if self._planner.looks_ahead:
            self._planner.expect(self._forecast(proposal, step.prefills))
        output = self._forward(rows)
        verdicts = self._verdicts(proposal, step.prefills, output.last_hidden[rows.judged]) if rows.judged else []
        self._watch.lap("verify")
        self._commit(proposal, step.prefills, verdicts, commits)
        self._watch.lap("other")
        self._keep(rows, output, bool(proposal.resting))
        judged = verdicts[: len(proposal.lengths)]
        accepted = [0 if isinstance(verdict, SamplingError) else verdict.accepted for verdict in judged]
        self._report(proposal, accepted)
        return Ran(commits, proposal, accepted, prefill_tokens)

    def _plan(self, step: Step[Running]) -> Proposal:
        """Who drafts with whom, and the plan of the round: at most `step.drafts` in all.

        It is made as if there were `step.open`, or a scheduler that rests could never see what room would bring.
        """
        if not step.decodes:
            return Proposal()
        proposal = Proposal(grouped(step.decodes, step.drafts))
        members = proposal.members
        proposal.lengths = proposal.drafted = [len(member.copies) for member in members]
        proposal.context = float(np.mean([member.running.computed for member in members]))
        others = len(members) - sum(proposal.lengths)
        batch = self._batch(members, others + step.open, sum(chunk.count for chunk in step.prefills))
        if batch is None:
            return proposal
        self._watch.lap("other")
        plan = self._planner.plan(batch)
        proposal.resting = not plan.drafts and batch.room > 0
        if step.drafts < step.open:
            plan = handed_on(plan, replace(batch, max_tokens=others + step.drafts))
        proposal.plan = plan
        self._watch.lap("schedule")
        return proposal

    def _draft(self, proposal: Proposal) -> None:
        """Draft as planned, and choose lengths."""
        members, plan = proposal.members, proposal.plan
        if plan is None:
            return
        if plan.drafts:
            gamma, width = plan.batch.gamma, plan.batch.width
            proposal.confidences = np.concatenate([group.draft(gamma, width) for group in proposal.groups])
            proposal.drafted = [len(drafts) for group in proposal.groups for drafts in group.sampler.drafts]
            self._watch.lap("draft")
        chosen = self._planner.scheduler.lengths(plan, proposal.confidences).tolist()
        drafts = zip(members, chosen, proposal.drafted, strict=True)
        proposal.lengths = [len(member.copies) or min(length, drafted) for member, length, drafted in drafts]
        self._watch.lap("schedule")

    def _batch(self, members: Sequence[Member], max_tokens: int, beside: int = 0) -> Batch | None:
        """What the scheduler is told of the members; None if none of them may draft. Gamma is always the same."""
        caps = np.array([member.cap for member in members])
        if not caps.any():
            return None
        return Batch(
            keys=np.array([member.running.key for member in members]),
            gamma=self._gamma,
            context=float(np.mean([member.running.computed for member in members])),
            caps=caps,
            max_tokens=max_tokens,
            beside=beside,
        )

    def _forecast(self, proposal: Proposal, prefills: Sequence[Chunk[Running]]) -> Batch | None:
        """The next round, if nobody ends and nobody comes."""
        members = proposal.members
        members += [Member(chunk.request) for chunk in prefills if chunk.last]
        return self._batch(members, self._max_tokens) if members else None

    def _forward(self, rows: Rows) -> TargetOutput:
        caches = [running.target_cache for running in rows.owners]
        taps = self._features.taps if any(running.draft_cache is not None for running in rows.owners) else ()
        what = (as_ids(rows.token_ids), caches, rows.counts, taps)
        padding = self._memory.padding
        return forward_ragged(self._target, *what) if padding is None else padding.forward(self._target, *what)

    def _verdicts(self, proposal: Proposal, prefills: Sequence[Chunk[Running]], judged: Tensor) -> list[Judged]:
        """Those of members in order, then of the prompts whose first token is due, from states `judged` [., d]."""
        lengths = iter(proposal.lengths)
        rounds = [(group.sampler, [next(lengths) for _ in group.members]) for group in proposal.groups]
        due = [chunk.request.request.sampler for chunk in prefills if _due(chunk)]
        nothing = [0] * len(due)
        return judge_each(self._target, [*rounds, (BatchRound(due, nothing, nothing), nothing)], judged)

    def _commit(
        self, proposal: Proposal, prefills: Sequence[Chunk[Running]], verdicts: Sequence[Judged], commits: Commits
    ) -> None:
        judged = iter(verdicts)
        drafts = [drafts for group in proposal.groups for drafts in group.sampler.drafts]
        for member, proposed, length in zip(proposal.members, drafts, proposal.lengths, strict=True):
            running, verdict = member.running, next(judged)
            if isinstance(verdict, SamplingError):
                commits.append((running, _failed(running, verdict)))
                continue
            running.target_cache.rollback(running.request.length + verdict.accepted)
            round_ = (proposed[:length], verdict, bool(member.copies), len(proposed))
            commits.append((running, running.request.commit_round(*round_)))
        for running in [chunk.request for chunk in prefills if _due(chunk)]:
            verdict = next(judged)
            if isinstance(verdict, SamplingError):
                commits.append((running, _failed(running, verdict)))
            else:
                commits.append((running, running.request.commit_first(verdict)))

    def _keep(self, rows: Rows, output: TargetOutput, resting: bool) -> None:
        """Owe drafters the positions that were kept, and show them; while rounds rest, only once it is worth a call.

        Others can share what was shown: so a request does not end by itself while a prompt is owed of it. One that is
        aborted or sent away takes what it is owed with it.
        """
        kept, first, leaving = list[tuple[Running, int, int]](), 0, False
        for running, count in zip(rows.owners, rows.counts, strict=True):
            if running.draft_cache is None:
                if running.finish_reason is None:
                    self._memory.commit(running)
            elif running.finish_reason is None:
                kept.append((running, first, running.computed - running.draft_cache.length - self._owed.of(running)))
            else:
                unseen = running.draft_cache.length < len(running.request.prompt_ids)
                leaving |= unseen and self._owed.of(running) > 0
            first += count
        self._owe(kept, output.features)
        if leaving or not resting or self._owed.rows >= OWED:
            self._settle()
        self._watch.lap("draft")

    def _owe(self, kept: Sequence[tuple[Running, int, int]], features: Tensor) -> None:
        """Owe rows (whose, the first, how many) of `features` [N, m * d of all drafters]."""
        by_drafter = dict[int, list[tuple[Running, int, int]]]()
        for one in kept:
            by_drafter.setdefault(id(one[0].strategy.drafter), []).append(one)
        for own in by_drafter.values():
            owners, firsts, counts = zip(*own, strict=True)
            strategy = owners[0].strategy
            assert strategy.drafter is not None
            rows = np.arange(sum(counts)) + np.repeat(np.array(firsts) - (np.cumsum(counts) - counts), counts)
            chosen = self._features.of(strategy, features, torch.from_numpy(rows))
            self._owed.add(strategy.drafter, owners, counts, chosen)

    def _settle(self) -> float:
        """Show drafters what they are owed, and let others share it; seconds that it took."""
        before = self._watch.seconds.get("draft", 0.0)
        try:
            for running in self._owed.settle():
                self._memory.commit(running)
        except BaseException:
            self._owed.forgive()
            raise
        self._watch.lap("draft")
        return self._watch.seconds["draft"] - before

    def _report(self, proposal: Proposal, accepted: Sequence[int]) -> None:
        self._planner.settle()
        if proposal.plan is not None:
            drafted = np.array([not member.copies for member in proposal.members])
            outcome = Outcome(proposal.plan, np.array(proposal.lengths) * drafted, np.array(accepted) * drafted)
            self._planner.scheduler.observe(outcome)
        self._watch.lap("schedule")


def _rows(proposal: Proposal, prefills: Sequence[Chunk[Running]]) -> Rows:
    """Anchors and drafts to verify, then chunks of prompts."""
    rows = Rows()
    drafts = [drafts for group in proposal.groups for drafts in group.sampler.drafts]
    for member, proposed, length in zip(proposal.members, drafts, proposal.lengths, strict=True):
        running = member.running
        rows.add(running, [running.request.anchor, *proposed[:length]], 1 + length)
    for chunk in prefills:
        tokens = chunk.request.tokens(chunk.first, chunk.first + chunk.count)
        rows.add(chunk.request, tokens, int(_due(chunk)))
    return rows


def _failed(running: Running, error: SamplingError) -> Commit:
    """Let the request end with what it has."""
    running.error = str(error)
    return Commit((), "")


def _due(chunk: Chunk[Running]) -> bool:
    """Whether the answer's first token is drawn behind this chunk; a request that comes back has it already."""
    return chunk.last and not chunk.request.request.output.token_ids


def _expected(plan: Plan, verified: int) -> float | None:
    """Seconds that the plan gave a round of so many drafts."""
    if plan.seconds is None:
        return None
    drafted = plan.seconds.drafted
    return float(drafted[min(verified, len(drafted) - 1)]) if plan.drafts else plan.seconds.plain
