"""Tau and acceptance by position over prompt sets, prompt by prompt, resumable."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspark.core.tau import Round, RoundTally
from dspark.disk import naming
from dspark.errors import CompatibilityError, FormatError
from dspark.evaluation.bootstrap import Sample, mean_ratio_interval, ratio_interval
from dspark.evaluation.prompts import Prompt, PromptSet


@dataclass(frozen=True, slots=True)
class PromptOutcome:
    """What decoding one prompt gave: its rounds and the seconds it took (prefill apart)."""

    tally: RoundTally
    decode_seconds: float
    prefill_seconds: float


DecodePrompt = Callable[[Prompt, int], PromptOutcome]
"""Decode a prompt with a seed."""


@dataclass(frozen=True, slots=True)
class SetReport:
    """One set's figures; `tau_ci95` by bootstrap over prompts, whose shares of tau are `samples`."""

    name: str
    tau: float
    tau_ci95: tuple[float, float]
    prompts: int
    tally: RoundTally
    decode_seconds: float
    samples: tuple[Sample, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The shape scripts rely on: tau, tau_ci95, prompts and the metrics of the rounds."""
        seconds = self.decode_seconds
        metrics = self.tally.metrics()
        speed = self.tally.tokens_per_target_forward * self.tally.rounds / seconds if seconds else 0.0
        return {"tau_ci95": list(self.tau_ci95), "prompts": self.prompts, "tokens_per_second": speed, **metrics}


@dataclass(frozen=True, slots=True)
class EvalReport:
    """All sets, and the plain mean of their taus with its interval."""

    sets: tuple[SetReport, ...]
    mean_tau: float
    mean_tau_ci95: tuple[float, float]

    def as_json(self) -> dict[str, Any]:
        """{"sets": {name: ...}, "mean_tau", "mean_tau_ci95"}."""
        return {
            "sets": {report.name: report.as_json() for report in self.sets},
            "mean_tau": self.mean_tau,
            "mean_tau_ci95": list(self.mean_tau_ci95),
        }


class Journal:
    """Outcomes of finished prompts, one JSON line each, so that an interrupted evaluation goes on where it stopped.

    The first line holds the settings; a journal of other settings is refused rather than mixed in.
    """

    def __init__(self, path: Path | None, settings: Mapping[str, Any]) -> None:
        self._path = path
        self._done: dict[tuple[str, str, int], PromptOutcome] = {}
        if path is not None:
            self._open(path, json.loads(json.dumps(settings)))

    def find(self, set_name: str, prompt: Prompt, seed: int) -> PromptOutcome | None:
        """The outcome recorded for a prompt's text and seed, if any."""
        return self._done.get((set_name, prompt.digest, seed))

    def record(self, set_name: str, prompt: Prompt, seed: int, outcome: PromptOutcome) -> None:
        """Append an outcome at once."""
        self._done[set_name, prompt.digest, seed] = outcome
        if self._path is not None:
            key = {"set": set_name, "prompt": prompt.id, "digest": prompt.digest, "seed": seed}
            self._append({**key, **_to_json(outcome)})

    def _open(self, path: Path, settings: Any) -> None:
        lines = whole_lines(path) if path.exists() else []
        if not lines:  # new, or the disk was full before the first line
            path.parent.mkdir(parents=True, exist_ok=True)
            self._append({"settings": settings})
            return
        try:
            first, *rows = [json.loads(line) for line in lines]
            found = first["settings"]
            self._done = {(row["set"], row["digest"], row["seed"]): _from_json(row) for row in rows}
        except (ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{path} is not an evaluation journal: {error}. Remove it or name another.") from error
        if found != settings:
            different = sorted(key for key in settings if found.get(key) != settings[key])
            raise CompatibilityError(
                f"{path} was made with other settings ({', '.join(different) or 'fewer keys'} differ). Name another."
            )

    def _append(self, row: Mapping[str, Any]) -> None:
        assert self._path is not None
        with naming(self._path), self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def evaluate(
    decode: DecodePrompt,
    sets: Sequence[PromptSet],
    seed: int = 0,
    journal: Journal | None = None,
    watch: Callable[[str, PromptOutcome], None] = lambda name, outcome: None,
) -> EvalReport:
    """Decode every prompt (seed + its index, as DeepSpec does) and report tau per set and on average."""
    journal = journal or Journal(None, {})
    reports = []
    for prompts in sets:
        outcomes = []
        for index, prompt in enumerate(prompts.prompts):
            outcome = journal.find(prompts.name, prompt, seed + index)
            if outcome is None:
                outcome = decode(prompt, seed + index)
                journal.record(prompts.name, prompt, seed + index, outcome)
            outcomes.append(outcome)
            watch(prompts.name, outcome)
        reports.append(_report(prompts.name, outcomes))
    mean = sum(report.tau for report in reports) / len(reports)
    return EvalReport(tuple(reports), mean, mean_ratio_interval([report.samples for report in reports]))


def whole_lines(path: Path) -> list[str]:
    """The lines of a file that is only appended to; one that a kill cut short is removed from the file."""
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return whole.splitlines()


def _report(name: str, outcomes: Sequence[PromptOutcome]) -> SetReport:
    tally = RoundTally.merged(outcome.tally for outcome in outcomes)
    samples = tuple(Sample(outcome.tally.acceptance_length, outcome.tally.rounds) for outcome in outcomes)
    seconds = sum(outcome.decode_seconds for outcome in outcomes)
    return SetReport(name, tally.tau, ratio_interval(samples), len(outcomes), tally, seconds, samples)


def _to_json(outcome: PromptOutcome) -> dict[str, Any]:
    rounds = [
        [entry.drafted, entry.verified, entry.accepted, entry.emitted, entry.ended, count]
        for entry, count in sorted(outcome.tally.entries.items(), key=lambda item: repr(item[0]))
    ]
    seconds = {"decode_seconds": outcome.decode_seconds, "prefill_seconds": outcome.prefill_seconds}
    return {"rounds": rounds, "first_tokens": outcome.tally.first_tokens, **seconds}


def _from_json(row: Mapping[str, Any]) -> PromptOutcome:
    tally = RoundTally(first_tokens=row["first_tokens"])
    for *fields, count in row["rounds"]:
        tally.entries[Round(*fields)] += count
    return PromptOutcome(tally, row["decode_seconds"], row["prefill_seconds"])
