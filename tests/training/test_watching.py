"""Runs that measure, keep the best drafter, stop when nothing gets better, and count steps that were no numbers."""

import json
from pathlib import Path

import pytest
import torch

from dspark.data.answers import split_answers
from dspark.drafters.registry import load_drafter
from dspark.training import trainer as trainer_module
from dspark.training.on_policy import OnPolicyResult
from dspark.training.progress import Progress
from dspark.training.recipe import Recipe
from dspark.training.state import read_state
from dspark.training.step import DivergenceError, train_step
from dspark.training.trainer import Cadence, Trainer
from tests.training.test_trainer import CLOCKS, Killed, make_trainer, parameters, stop_after
from tests.training.tiny import TinyTarget, tiny_answers, tiny_recipe


class Decoding:
    """A probe that finds what it is told to, one accepted length after another."""

    def __init__(self, *taus: float) -> None:
        self.taus = list(taus)

    def __call__(self, drafter: object) -> OnPolicyResult:
        return OnPolicyResult(self.taus.pop(0), (0.5, 0.25, 0.0), 10, 2)


def watched(recipe: Recipe, **evaluation: int) -> Recipe:
    return recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update=evaluation)})


def rows(directory: Path) -> list[dict]:
    found = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in CLOCKS} for row in found]


def test_the_best_by_accepted_length_is_kept(tmp_path: Path) -> None:
    """Decoding decides, not the teacher-forced figure, which keeps rising; the kept weights are those of its step."""
    trainer = make_trainer(tmp_path, watched(tiny_recipe(), keep=2))
    trainer.probe = Decoding(1.5, 1.7, 1.6)
    seen: dict[int, dict[str, torch.Tensor]] = {}
    trainer.watch = lambda progress: seen.update({progress.step: parameters(trainer)})
    trainer.run()
    assert (trainer.best.step, trainer.best.tau) == (4, 1.7)
    kept = load_drafter(tmp_path / "best", TinyTarget(), kernel=None)
    for name, value in kept.named_parameters():
        torch.testing.assert_close(value, seen[4][name].bfloat16().float(), atol=0, rtol=0)
    training = json.loads((tmp_path / "best" / "config.json").read_text())["dspark"]["training"]
    assert (training["steps"], training["on_policy_tau"]) == (4, 1.7)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-4", "step-6"]


def test_without_decoding_the_teacher_forced_figure_decides(tmp_path: Path) -> None:
    seen: list[Progress] = []
    trainer = make_trainer(tmp_path, tiny_recipe(), seen)
    trainer.run()
    taus = {p.step: p.held_out.tau for p in seen if p.held_out}
    assert trainer.best.step == max(taus, key=taus.__getitem__)
    assert (tmp_path / "best" / "model.safetensors").is_file()


def test_a_run_without_progress_stops_early_and_stays_stopped(tmp_path: Path) -> None:
    patient = watched(tiny_recipe(total_steps=20), patience=2)
    trainer = make_trainer(tmp_path, patient)
    trainer.probe = Decoding(1.5, 1.7, 1.6, 1.7)
    assert trainer.run() == 8
    assert trainer.stopped_early
    again = make_trainer(tmp_path, patient)
    assert (again.run(), again.stopped_early) == (8, True)
    more = make_trainer(tmp_path, watched(patient, patience=3))
    more.probe = Decoding(1.8, 1.7, 1.7, 1.7)
    assert more.run() == 16
    assert more.best.step == 10


def test_a_killed_and_resumed_run_has_the_log_of_an_uninterrupted_one(tmp_path: Path) -> None:
    """The steps after the last state are run again; their first rows are put aside, not left as a second curve."""
    make_trainer(tmp_path / "straight", tiny_recipe()).run()
    killed = make_trainer(tmp_path / "cut", tiny_recipe(), cadence=Cadence(2, 1e9))
    stop_after(killed, 2)  # the state is of step 2, the log reaches step 3
    with (tmp_path / "cut" / "metrics.jsonl").open("a") as log:
        log.write('{"step": 4, "lo')
    resumed = make_trainer(tmp_path / "cut", tiny_recipe())
    resumed.run()
    assert rows(tmp_path / "cut") == rows(tmp_path / "straight")
    aside = [
        json.loads(line)["step"] for line in (tmp_path / "cut" / "metrics.superseded.jsonl").read_text().splitlines()
    ]
    assert aside == [3]
    assert resumed.best.step > 0


def break_steps(monkeypatch: pytest.MonkeyPatch, bad: set[int]) -> None:
    """Make the loss of some steps infinite, by their place in the run (from 1)."""
    calls = [0]

    def flawed(*arguments):
        calls[0] += 1
        if calls[0] in bad:
            raise DivergenceError("Loss inf")
        return train_step(*arguments)

    monkeypatch.setattr(trainer_module, "train_step", flawed)


def test_bad_steps_are_skipped_counted_and_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_steps(monkeypatch, {2, 3, 5})
    seen: list[Progress] = []
    trainer = make_trainer(tmp_path, tiny_recipe(max_bad_steps=3), seen)
    assert trainer.run() == 6
    assert [p.bad.total for p in seen] == [0, 1, 2, 2, 3, 3]
    assert [row.get("skipped") for row in rows(tmp_path)] == [None, "Loss inf", "Loss inf", None, "Loss inf", None]
    state = read_state(tmp_path / "state")
    assert (state.skipped, state.skipped_in_a_row, state.updates) == (3, 0, 3)


def test_a_bad_step_changes_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    break_steps(monkeypatch, {2})
    trainer = make_trainer(tmp_path, tiny_recipe())
    after: list[dict[str, torch.Tensor]] = []
    trainer.watch = lambda progress: after.append(parameters(trainer))
    trainer.run()
    assert all(torch.equal(after[0][name], after[1][name]) for name in after[0])
    assert not all(torch.equal(after[1][name], after[2][name]) for name in after[0])


def test_too_many_bad_steps_in_a_row_end_the_run_and_all_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_steps(monkeypatch, {1, 3, 4})
    with pytest.raises(DivergenceError, match=r"2 bad steps in a row, 3 in all\. Loss inf"):
        make_trainer(tmp_path, tiny_recipe(max_bad_steps=2)).run()
    assert ["skipped" in row for row in rows(tmp_path)] == [True, False, True, True]


def test_resuming_after_a_skipped_step_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The optimiser's clock counts updates, not steps: bias correction would differ otherwise."""
    with monkeypatch.context() as patch:
        break_steps(patch, {1})
        straight = make_trainer(tmp_path / "straight", tiny_recipe())
        straight.run()
    with monkeypatch.context() as patch:
        break_steps(patch, {1})
        stop_after(make_trainer(tmp_path / "cut", tiny_recipe()), 2)
    resumed = make_trainer(tmp_path / "cut", tiny_recipe())
    resumed.run()
    assert resumed.bad.total == 1
    for name, value in parameters(straight).items():
        assert torch.equal(value, parameters(resumed)[name]), name


def test_how_a_run_is_watched_does_not_decide_what_it_computes(tmp_path: Path) -> None:
    stop_after(make_trainer(tmp_path / "a", tiny_recipe()), 3)
    changed = watched(tiny_recipe(max_bad_steps=9), every_steps=1, on_policy_answers=0, keep=1, patience=50)
    resumed = make_trainer(tmp_path / "a", changed, cadence=Cadence(None, 1e9))
    resumed.run()
    straight = make_trainer(tmp_path / "b", tiny_recipe())
    straight.run()
    for name, value in parameters(straight).items():
        assert torch.equal(value, parameters(resumed)[name]), name
    assert sum("held_out" in row for row in rows(tmp_path / "a")) == 4


@pytest.mark.parametrize("killed_in", ["measure", "write"])
def test_a_kill_around_the_best_drafter_loses_nothing(
    tmp_path: Path, killed_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(tmp_path, tiny_recipe(), cadence=Cadence(2, 0.0))
    trainer.probe = Decoding(1.5, 1.7, 1.8)

    def kill(*arguments: object) -> None:
        raise Killed

    def kill_at_four(progress: Progress) -> None:
        if progress.step == 3:
            home, name = (trainer, "measure") if killed_in == "measure" else (Trainer, "_checkpoints")
            monkeypatch.setattr(home, name, kill if killed_in == "measure" else property(kill))

    trainer.watch = kill_at_four
    with pytest.raises(Killed):
        trainer.run()
    monkeypatch.undo()
    assert load_drafter(tmp_path / "best", TinyTarget(), kernel=None)
    resumed = make_trainer(tmp_path, tiny_recipe())
    resumed.probe = Decoding(1.7, 1.6)
    assert resumed.run() == 6
    assert (resumed.best.step, resumed.best.tau) == (4, 1.7)
    training = json.loads((tmp_path / "best" / "config.json").read_text())["dspark"]["training"]
    assert training["steps"] == 4


def test_nothing_held_out_means_nothing_measured(tmp_path: Path) -> None:
    recipe = tiny_recipe()
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"held_out": 0})})
    trainer = make_trainer(tmp_path, recipe)
    assert split_answers(tiny_answers(), 0).held_out == ()
    trainer.run()
    assert trainer.best.step == 0
    assert not (tmp_path / "best").exists()
