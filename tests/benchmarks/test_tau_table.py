"""The table's bookkeeping: rows, journals and quotients by drafter and sampling."""

from dataclasses import replace

import pytest

from benchmarks.tau_table import ADVISED, Arm, journal_name, markdown, quotients, row, temperature_and_top_p
from dspark.core.tau import Round, RoundTally
from dspark.evaluation.evaluate import EvalReport, PromptOutcome, evaluate
from dspark.evaluation.prompts import Prompt, PromptSet
from dspark.types import SamplingParams

SETS = [PromptSet("gsm8k", (Prompt("0", "math", ("a",)), Prompt("1", "math", ("b",))))]
GREEDY = SamplingParams()
FILTERED = replace(GREEDY, temperature=ADVISED[0], top_p=ADVISED[1])


def report(accepted: int) -> EvalReport:
    def decode(prompt: Prompt, seed: int) -> PromptOutcome:
        tally = RoundTally(first_tokens=1)
        tally.add(Round(drafted=5, verified=5, accepted=accepted, emitted=accepted + 1))
        return PromptOutcome(tally, 1.0, 0.0)

    return evaluate(decode, SETS)


def test_samplings_are_temperatures_with_or_without_top_p():
    assert temperature_and_top_p("1") == (1.0, 1.0)
    assert temperature_and_top_p("0.2,0.9") == ADVISED


def test_journals_of_samplings_are_apart_and_those_without_top_p_keep_their_names():
    arm = Arm("A", drafter=None, weights_hash="0123456789")
    assert journal_name(arm, GREEDY, "replay") == "A-01234567-0-replay.jsonl"
    names = {journal_name(arm, replace(GREEDY, temperature=0.2, top_p=p), "replay") for p in (0.8, 0.9, 1.0)}
    assert len(names) == 3


def test_the_table_tells_temperature_and_top_p():
    lines = markdown([row("A", params, report(1)) for params in (GREEDY, FILTERED)]).splitlines()
    assert lines[2].startswith("| A | 0 | 2.00")
    assert lines[3].startswith("| A | 0.2, top-p 0.9 | 2.00")


def test_the_first_drafter_is_held_against_the_others_under_each_sampling():
    reports = {
        ("A", GREEDY): report(3), ("A", FILTERED): report(2),
        ("B", GREEDY): report(1), ("B", FILTERED): report(2),
    }  # fmt: skip
    found = [(q["drafter"], q["over"], q["temperature"], q["quotient"]) for q in quotients(reports)]
    assert found == [("A", "B", 0.0, 2.0), ("A", "B", 0.2, pytest.approx(1.0))]
    assert quotients({("A", GREEDY): report(3)}) == []
