"""One run in numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dspark.core.tau import RoundTally
from dspark.evaluation.bench.trace import Run, StepTrace


@dataclass(frozen=True, slots=True)
class RunFigures:
    """A run in numbers; None where there was nothing to tell.

    Tokens per second of the window: all, prompts being read meanwhile; and of the steps alone that read no prompt. Of
    users: tokens over the whole wait, p05 being the slow end; and after the first token. `*_per_request` are drafts of
    one request in one round, whether it drafted or not. Predicted seconds are of rounds, and compared where a step read
    no prompt. Shares are of the engine's time.
    """

    tokens_per_second: float
    requests_per_second: float
    decode_tokens_per_second: float | None
    user_tokens_per_second_p05: float
    user_tokens_per_second_p50: float
    user_tokens_per_second_p95: float
    user_decode_tokens_per_second_p50: float | None
    first_token_seconds_p50: float
    first_token_seconds_p95: float
    latency_seconds_mean: float
    latency_seconds_p50: float
    latency_seconds_p95: float
    mean_in_flight: float
    requests: int
    window_seconds: float
    window_tokens: int
    steps: int
    step_seconds: float
    prefill_tokens: int
    requests_per_step: float
    drafting_share: float
    tau: float
    drafted_per_request: float
    verified_per_request: float
    accepted_per_request: float
    budget: float | None
    predicted_survival: float | None
    observed_survival: float | None
    predicted_over_real_seconds: float | None
    draft_share: float
    verify_share: float
    schedule_share: float
    other_share: float
    pages_used: int
    waiting: float
    preempted: int


def run_figures(run: Run) -> RunFigures:
    """The numbers of `run`."""
    requests, steps = run.measured, run.steps
    seconds, stats = run.seconds, [step.stats for step in run.steps]
    rounds, engine = sum(s.requests for s in stats), sum(s.seconds for s in stats)
    tokens = sum(step.tokens for step in steps)
    speeds, latencies = [r.speed for r in requests], [r.latency for r in requests]
    firsts, verified = [r.first_token_seconds for r in requests], sum(s.verified for s in stats)
    return RunFigures(
        tokens_per_second=_ratio(tokens, seconds),
        requests_per_second=_ratio(run.ended, seconds),
        decode_tokens_per_second=_decoding(steps),
        user_tokens_per_second_p05=_quantile(speeds, 0.05),
        user_tokens_per_second_p50=_quantile(speeds, 0.5),
        user_tokens_per_second_p95=_quantile(speeds, 0.95),
        user_decode_tokens_per_second_p50=_median(r.writing_speed for r in requests),
        first_token_seconds_p50=_quantile(firsts, 0.5),
        first_token_seconds_p95=_quantile(firsts, 0.95),
        latency_seconds_mean=float(np.mean(latencies)),
        latency_seconds_p50=_quantile(latencies, 0.5),
        latency_seconds_p95=_quantile(latencies, 0.95),
        mean_in_flight=run.in_flight,
        requests=len(requests),
        window_seconds=seconds,
        window_tokens=tokens,
        steps=len(steps),
        step_seconds=_ratio(engine, len(steps)),
        prefill_tokens=sum(s.prefill_tokens for s in stats),
        requests_per_step=_ratio(rounds, len(steps)),
        drafting_share=_ratio(sum(s.drafting for s in stats), rounds),
        tau=RoundTally.merged(r.tally for r in requests if r.tally is not None).tau,
        drafted_per_request=_ratio(sum(s.drafted for s in stats), rounds),
        verified_per_request=_ratio(verified, rounds),
        accepted_per_request=_ratio(sum(s.accepted for s in stats), rounds),
        budget=_mean(s.budget for s in stats),
        predicted_survival=_survival(steps, predicted=True),
        observed_survival=_survival(steps, predicted=False),
        predicted_over_real_seconds=_median(
            s.predicted_seconds / s.seconds
            for s in stats
            if s.predicted_seconds is not None and s.seconds > 0 and not s.prefill_tokens
        ),
        draft_share=_ratio(sum(s.draft_seconds for s in stats), engine),
        verify_share=_ratio(sum(s.verify_seconds for s in stats), engine),
        schedule_share=_ratio(sum(s.schedule_seconds for s in stats), engine),
        other_share=_ratio(sum(s.other_seconds for s in stats), engine),
        pages_used=max((s.pages_used for s in stats), default=0),
        waiting=_mean(s.waiting for s in stats) or 0.0,
        preempted=sum(s.preempted for s in stats),
    )


def _decoding(steps: Sequence[StepTrace]) -> float | None:
    """Tokens per second of the steps that read no prompt."""
    pure = [step for step in steps if not step.stats.prefill_tokens]
    seconds = sum(step.seconds for step in pure)
    return sum(step.tokens for step in pure) / seconds if seconds else None


def _survival(steps: Sequence[StepTrace], predicted: bool) -> float | None:
    """Mean survival of a verified draft, of the steps that predict it."""
    pairs = [(s.predicted_survival, s) for s in (step.stats for step in steps)]
    told = [(float(sum_of_survivals), s) for sum_of_survivals, s in pairs if sum_of_survivals is not None]
    verified = sum(s.verified for _, s in told)
    survived = sum(sum_of_survivals if predicted else s.accepted for sum_of_survivals, s in told)
    return survived / verified if verified else None


def _quantile(values: Sequence[float], share: float) -> float:
    return float(np.quantile(values, share))


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
