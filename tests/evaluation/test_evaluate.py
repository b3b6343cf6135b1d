"""Tau is the micro-average over a set's rounds; an interrupted evaluation resumes without decoding anything twice."""

import json
from pathlib import Path

import pytest

from dspark.core.tau import Round, RoundTally
from dspark.errors import CompatibilityError, FormatError
from dspark.evaluation.evaluate import Journal, PromptOutcome, evaluate
from dspark.evaluation.prompts import Prompt, PromptSet
from dspark.evaluation.quotient import Quotient

SETS = [
    PromptSet("short", (Prompt("s0", "math", ("a",)), Prompt("s1", "math", ("b",)))),
    PromptSet("long", (Prompt("l0", "chat", ("c",)),)),
]
ACCEPTED = {"s0": (0, 2), "s1": (3,), "l0": (1,)}


class Decoder:
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def __call__(self, prompt: Prompt, seed: int) -> PromptOutcome:
        self.calls.append((prompt.id, seed))
        tally = RoundTally(first_tokens=1)
        for accepted in ACCEPTED[prompt.id]:
            tally.add(Round(drafted=3, verified=3, accepted=accepted, emitted=accepted + 1))
        return PromptOutcome(tally, 2.0, 0.5)


def test_sets_are_micro_averaged_and_the_mean_is_over_sets() -> None:
    report = evaluate(Decoder(), SETS)
    assert report.sets[0].tau == pytest.approx((1 + 3 + 4) / 3)
    assert report.sets[1].tau == 2.0
    assert report.mean_tau == pytest.approx((8 / 3 + 2) / 2)
    low, high = report.sets[0].tau_ci95
    assert low <= report.sets[0].tau <= high


def test_every_prompt_gets_its_own_seed() -> None:
    decoder = Decoder()
    evaluate(decoder, SETS, seed=10)
    assert decoder.calls == [("s0", 10), ("s1", 11), ("l0", 10)]


def test_the_json_has_the_keys_that_scripts_rely_on() -> None:
    report = json.loads(json.dumps(evaluate(Decoder(), SETS).as_json()))
    assert set(report["sets"]) == {"short", "long"}
    assert {"tau", "tau_ci95", "prompts", "acceptance_by_position", "tokens_per_second"} <= set(report["sets"]["short"])
    assert report["sets"]["short"]["prompts"] == 2
    assert report["sets"]["short"]["tokens_per_second"] == pytest.approx(8 / 4)


def test_accepted_lengths_are_compared_over_the_same_prompts_alone() -> None:
    report, fewer = evaluate(Decoder(), SETS), evaluate(Decoder(), SETS[:1])
    assert Quotient.of(report, report) == Quotient(1.0, (1.0, 1.0))
    with pytest.raises(CompatibilityError, match="the same prompts"):
        Quotient.of(report, fewer)


@pytest.mark.parametrize("left", ["", '{"settings": {"gam'])
def test_a_journal_that_was_cut_in_its_first_line_is_begun_again(tmp_path: Path, left: str) -> None:
    """As a full disk or a kill leaves it: nothing is in it that could be lost."""
    path = tmp_path / "journal.jsonl"
    path.write_text(left)
    evaluate(Decoder(), SETS, journal=Journal(path, {"gamma": 3}))
    again = Decoder()
    evaluate(again, SETS, journal=Journal(path, {"gamma": 3}))
    assert again.calls == []


def test_an_interrupted_evaluation_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    def interrupted(prompt: Prompt, seed: int) -> PromptOutcome:
        if prompt.id == "s1":
            raise KeyboardInterrupt
        return Decoder()(prompt, seed)

    with pytest.raises(KeyboardInterrupt):
        evaluate(interrupted, SETS, journal=Journal(path, {"temperature": 0}))
    decoder = Decoder()
    resumed = evaluate(decoder, SETS, journal=Journal(path, {"temperature": 0}))
    assert [prompt for prompt, _ in decoder.calls] == ["s1", "l0"]
    assert resumed == evaluate(Decoder(), SETS)


def test_a_journal_of_other_settings_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    evaluate(Decoder(), SETS, journal=Journal(path, {"temperature": 0}))
    with pytest.raises(CompatibilityError, match="temperature"):
        Journal(path, {"temperature": 1})


def test_other_files_are_no_journals(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('{"set": 1}\n')
    with pytest.raises(FormatError, match="not an evaluation journal"):
        Journal(path, {})


def test_a_journal_line_cut_short_is_decoded_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    report = evaluate(Decoder(), SETS, journal=Journal(path, {}))
    path.write_text(path.read_text()[:-20])
    decoder = Decoder()
    assert evaluate(decoder, SETS, journal=Journal(path, {})) == report
    assert [prompt for prompt, _ in decoder.calls] == ["l0"]
    assert evaluate(Decoder(), SETS, journal=Journal(path, {})) == report


def test_another_text_or_seed_under_an_old_id_is_decoded_anew(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", {})
    evaluate(Decoder(), SETS[1:], journal=journal)
    changed, reseeded = Decoder(), Decoder()
    evaluate(changed, [PromptSet("long", (Prompt("l0", "chat", ("other",)),))], journal=journal)
    evaluate(reseeded, SETS[1:], seed=5, journal=journal)
    assert (changed.calls, reseeded.calls) == ([("l0", 0)], [("l0", 5)])
