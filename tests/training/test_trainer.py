"""A run that is killed and resumed ends bit for bit where an uninterrupted one ends."""

import json
from pathlib import Path

import pytest
import torch

from dspark.errors import CompatibilityError
from dspark.training.recipe import Recipe
from dspark.training.setup import build_drafter
from dspark.training.step import DivergenceError
from dspark.training.teacher import Teacher
from dspark.training.trainer import Cadence, Progress, Trainer
from tests.training.tiny import TinyTarget, tiny_answers, tiny_recipe


def make_trainer(
    directory: Path, recipe: Recipe, seen: list[Progress] | None = None, cadence: Cadence | None = None
) -> Trainer:
    target, answers = TinyTarget(), tiny_answers()
    teacher = Teacher(target, recipe.drafter.target_layer_ids, recipe.data.teacher_top_k)
    drafter = build_drafter(recipe, target, answers, teacher)
    watch = (seen if seen is not None else []).append
    return Trainer(recipe, drafter, teacher, answers, directory, cadence or Cadence(2, 1e9), watch)


class Killed(BaseException):
    """Stands for a kill: nothing after it runs."""


def parameters(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in trainer.drafter.named_parameters()}


@pytest.mark.parametrize("killed_after", [1, 3, 5])
def test_resuming_after_a_kill_changes_nothing(tmp_path: Path, killed_after: int) -> None:
    straight = make_trainer(tmp_path / "straight", tiny_recipe())
    straight.run()

    cut = make_trainer(tmp_path / "cut", tiny_recipe(), cadence=Cadence(2, 0.0))

    def kill(progress: Progress) -> None:
        if progress.step == killed_after + 1:
            raise Killed

    cut.watch = kill
    with pytest.raises(Killed):
        cut.run()
    resumed = make_trainer(tmp_path / "cut", tiny_recipe())
    assert resumed.run() == 6
    for name, value in parameters(straight).items():
        assert torch.equal(value, parameters(resumed)[name]), name


def test_a_longer_recipe_continues_from_before_the_cool_down(tmp_path: Path) -> None:
    make_trainer(tmp_path / "run", tiny_recipe()).run()
    longer = make_trainer(tmp_path / "run", tiny_recipe(total_steps=9))
    longer.run()
    straight = make_trainer(tmp_path / "straight", tiny_recipe(total_steps=9))
    straight.run()
    for name, value in parameters(straight).items():
        assert torch.equal(value, parameters(longer)[name]), name


def test_learning_lowers_the_held_out_loss(tmp_path: Path) -> None:
    seen: list[Progress] = []
    make_trainer(tmp_path, tiny_recipe(total_steps=60), seen).run()
    held_out = [p.held_out.total_variation for p in seen if p.held_out]
    assert held_out[-1] < 0.9 * held_out[0]


def test_metrics_are_one_json_object_a_step(tmp_path: Path) -> None:
    make_trainer(tmp_path, tiny_recipe()).run()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert len(rows[0]["acceptance"]) == 2
    assert len(rows[-1]["acceptance"]) == 3
    assert rows[-1]["held_out"]["tau"] >= 1


def test_another_recipe_does_not_resume_a_foreign_state(tmp_path: Path) -> None:
    make_trainer(tmp_path, tiny_recipe()).run()
    other = tiny_recipe().model_copy(update={"drafter": tiny_recipe().drafter.model_copy(update={"markov_rank": 5})})
    with pytest.raises(CompatibilityError, match="another output directory"):
        make_trainer(tmp_path, other).run()


def test_divergence_stops_the_run_before_the_parameters_are_spoilt(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, tiny_recipe())
    with torch.no_grad():
        trainer.drafter.fc.weight[0, 0] = float("nan")
    before = parameters(trainer)
    with pytest.raises(DivergenceError, match="learning_rate"):
        trainer.run()
    for name, value in parameters(trainer).items():
        torch.testing.assert_close(value, before[name], atol=0, rtol=0, equal_nan=True)
