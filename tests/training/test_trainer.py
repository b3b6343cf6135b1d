"""A run that is killed and resumed ends bit for bit where an uninterrupted one ends."""

import dataclasses
import json
import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from dspark.data.answers import split_answers
from dspark.errors import CompatibilityError, EndpointError
from dspark.training.hidden_states import LocalStates
from dspark.training.progress import Progress
from dspark.training.recipe import Recipe
from dspark.training.setup import build_drafter
from dspark.training.state import read_state
from dspark.training.step import DivergenceError
from dspark.training.teacher import Teacher
from dspark.training.trainer import Cadence, Trainer
from tests.training.tiny import TinyTarget, tiny_answers, tiny_recipe


def make_trainer(
    directory: Path, recipe: Recipe, seen: list[Progress] | None = None, cadence: Cadence | None = None
) -> Trainer:
    target, answers = TinyTarget(), split_answers(tiny_answers(), recipe.data.held_out)
    teacher = Teacher(target, recipe.drafter.target_layer_ids, recipe.data.teacher_top_k)
    drafter = build_drafter(recipe, target, answers.train, teacher)
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

    stop_after(make_trainer(tmp_path / "cut", tiny_recipe()), killed_after)
    resumed = make_trainer(tmp_path / "cut", tiny_recipe())
    assert resumed.run() == 6
    for name, value in parameters(straight).items():
        assert torch.equal(value, parameters(resumed)[name]), name


@dataclasses.dataclass
class DyingSource:
    """Gives states of as many batches as it has breath for; then its server is gone."""

    breath: int

    def states(self, sequences, places, taps):
        if self.breath == 0:
            raise EndpointError("the server is gone.")
        self.breath -= 1
        return LocalStates(TinyTarget()).states(sequences, places, taps)


def test_a_server_that_dies_costs_no_finished_step(tmp_path: Path) -> None:
    straight = make_trainer(tmp_path / "straight", tiny_recipe())
    straight.run()
    cut = make_trainer(tmp_path / "cut", tiny_recipe(), cadence=Cadence(100, 1e9))
    cut.teacher = dataclasses.replace(cut.teacher, source=DyingSource(3))
    with pytest.raises(EndpointError, match=r"^the server is gone. 3 steps are saved; the same command goes on$"):
        cut.run()
    assert read_state(tmp_path / "cut" / "state").step == 3
    resumed = make_trainer(tmp_path / "cut", tiny_recipe())
    assert resumed.run() == 6
    assert [row["step"] for row in resumed.log.rows()] == [1, 2, 3, 4, 5, 6]
    for name, value in parameters(straight).items():
        assert torch.equal(value, parameters(resumed)[name]), name


def extended_recipe() -> Recipe:
    """Every ingredient at once, chosen among candidates."""
    recipe = tiny_recipe()
    tree = recipe.model_dump()
    tree["drafter"] |= {
        "markov_head_type": "selector", "candidates": 6, "bigram_start": False, "sliding_window": 4,
        "convolution": {"taps": 2, "group": 4}, "experts": {"routed": 3, "active": 1, "width": 5},
        "hyper_connections": {"streams": 2, "iterations": 5},
    }  # fmt: skip
    tree["loss"] |= {"base_cross_entropy": 0.1}
    return Recipe.model_validate(tree)


def test_all_ingredients_train_balance_their_experts_and_resume_bit_for_bit(tmp_path: Path) -> None:
    seen: list[Progress] = []
    straight = make_trainer(tmp_path / "straight", extended_recipe(), seen)
    fresh = parameters(straight)
    straight.run()
    assert seen[-1].held_out is not None
    assert all((value != fresh[name]).any() for name, value in parameters(straight).items())
    assert straight.drafter.layers[0].mlp.e_score_correction_bias.any()

    stop_after(make_trainer(tmp_path / "cut", extended_recipe()), 3)
    resumed = make_trainer(tmp_path / "cut", extended_recipe())
    assert resumed.run() == 6
    for name, value in straight.drafter.state_dict().items():
        assert torch.equal(value, resumed.drafter.state_dict()[name]), name


def test_a_longer_recipe_continues_from_before_the_cool_down(tmp_path: Path) -> None:
    make_trainer(tmp_path / "run", tiny_recipe()).run()
    longer = make_trainer(tmp_path / "run", tiny_recipe(total_steps=9))
    longer.run()
    straight = make_trainer(tmp_path / "straight", tiny_recipe(total_steps=9))
    straight.run()
    for name, value in parameters(straight).items():
        assert torch.equal(value, parameters(longer)[name]), name


def test_lowering_the_length_into_the_cool_down_keeps_the_uncooled_weights(tmp_path: Path) -> None:
    """Step 5 lies beyond the start (4) of the new cool-down; a longer run must still go on from weights not cooled."""
    long = tiny_recipe(total_steps=20)
    stop_after(make_trainer(tmp_path / "run", long), 5)
    assert make_trainer(tmp_path / "run", tiny_recipe(total_steps=6)).run() == 6
    assert read_state(tmp_path / "run" / "stable").step == 5
    resumed, straight = make_trainer(tmp_path / "run", long), make_trainer(tmp_path / "straight", long)
    assert resumed.run() == straight.run() == 20
    for name, value in parameters(straight).items():
        assert torch.equal(value, parameters(resumed)[name]), name


def test_a_kill_while_the_cooled_state_is_put_aside_changes_nothing(tmp_path: Path) -> None:
    """Both states survive as `.old` alone: the cool-down must still be noticed, and the uncooled weights found."""
    make_trainer(tmp_path / "run", tiny_recipe()).run()
    for name in ("state", "stable"):
        (tmp_path / "run" / name).rename(tmp_path / "run" / f"{name}.old")
    seen: list[Progress] = []
    make_trainer(tmp_path / "run", tiny_recipe(total_steps=9), seen).run()
    assert seen[0].step == 5


def test_a_longer_recipe_is_refused_when_the_uncooled_weights_are_gone(tmp_path: Path) -> None:
    make_trainer(tmp_path, tiny_recipe()).run()
    shutil.rmtree(tmp_path / "stable")
    with pytest.raises(CompatibilityError, match=r"cooled down from step 4 on.*from step 7 on"):
        make_trainer(tmp_path, tiny_recipe(total_steps=9)).run()


def test_a_shorter_recipe_leaves_a_run_that_is_beyond_it_alone(tmp_path: Path) -> None:
    """Its weights were never cooled, so they must not be marked so."""
    stop_after(make_trainer(tmp_path, tiny_recipe(total_steps=20)), 8)
    assert make_trainer(tmp_path, tiny_recipe(total_steps=6)).run() == 8
    assert read_state(tmp_path / "state").cooldown_start is None


def stop_after(trainer: Trainer, step: int) -> None:
    """Run, saving every step, and die in the step after `step`."""
    trainer.cadence = Cadence(2, 0.0)

    def kill(progress: Progress) -> None:
        if progress.step == step + 1:
            raise Killed

    trainer.watch = kill
    with pytest.raises(Killed):
        trainer.run()


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
    assert len(rows[-1]["held_out"]["greedy_acceptance"]) == 3
    assert "greedy_acceptance" not in rows[-1]


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("drafter", {"target_layer_ids": (1, 3)}, r"drafter.target_layer_ids \[0, 3\], now \[1, 3\]"),
        ("drafter", {"markov_rank": 5}, "drafter.markov_rank 4, now 5"),
        ("loss", {"decay": 2.0}, "loss.decay 4.0, now 2.0"),
        ("data", {"held_out": 1}, "data.held_out 2, now 1"),
    ],
)
def test_another_recipe_does_not_resume_a_foreign_state(
    tmp_path: Path, section: str, change: dict[str, object], message: str
) -> None:
    make_trainer(tmp_path, tiny_recipe()).run()
    other = tiny_recipe()
    other = other.model_copy(update={section: getattr(other, section).model_copy(update=change)})
    with pytest.raises(CompatibilityError, match=message):
        make_trainer(tmp_path, other).run()


def test_another_target_does_not_resume_it_either(tmp_path: Path) -> None:
    make_trainer(tmp_path, tiny_recipe()).run()
    trainer = make_trainer(tmp_path, tiny_recipe())
    trainer.teacher.target.info = dataclasses.replace(trainer.teacher.target.info, weights_hash="others")
    with pytest.raises(CompatibilityError, match="target weights 'weights', now 'others'"):
        trainer.run()


def test_early_states_are_only_compared_by_shape(tmp_path: Path) -> None:
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


def test_a_thread_that_gets_no_signals_can_train(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(make_trainer(tmp_path, tiny_recipe()).run).result() == 6


def test_sigterm_ends_the_run_after_its_step_with_a_state(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, tiny_recipe())
    trainer.watch = lambda progress: os.kill(os.getpid(), signal.SIGTERM)
    assert trainer.run() == 1
    assert read_state(tmp_path / "state").step == 1


CLOCKS = ("time", "seconds", "cpu_seconds")


def with_chunks(recipe: Recipe, chunk: int | None, head: str = "vanilla") -> Recipe:
    loss = recipe.loss.model_copy(update={"vocabulary_chunk": chunk})
    return recipe.model_copy(
        update={"loss": loss, "drafter": recipe.drafter.model_copy(update={"markov_head_type": head})}
    )


@pytest.mark.parametrize("head", ["vanilla", "gated", "rnn"])
def test_reading_the_vocabulary_in_chunks_changes_rounding_alone(tmp_path: Path, head: str) -> None:
    """From the same weights: figures of an evaluation, and of a step with its gradient's norm."""
    evaluations, rows = [], []
    for name, chunk in (("whole", None), ("chunks", 7)):
        trainer = make_trainer(tmp_path / name, with_chunks(tiny_recipe(), chunk, head))
        evaluations.append(trainer.evaluate().as_json())
        stop_after(trainer, 0)
        row = json.loads((tmp_path / name / "metrics.jsonl").read_text())
        rows.append({key: value for key, value in row.items() if key not in CLOCKS})
    assert evaluations[1]["greedy_acceptance"] == evaluations[0]["greedy_acceptance"]
    assert flat_numbers(evaluations[1]) == pytest.approx(flat_numbers(evaluations[0]), abs=1e-4)  # rates have 4 digits
    assert flat_numbers(rows[1]) == pytest.approx(flat_numbers(rows[0]), abs=1e-4)


def flat_numbers(row: object) -> list[float]:
    if isinstance(row, dict):
        return [number for value in row.values() for number in flat_numbers(value)]
    return [number for value in row for number in flat_numbers(value)] if isinstance(row, list) else [row]


@pytest.mark.parametrize("key", ["loss.vocabulary_chunk", "algorithm"])
def test_states_from_before_there_was_such_a_key_resume(tmp_path: Path, key: str) -> None:
    stop_after(make_trainer(tmp_path, tiny_recipe()), 3)
    path = tmp_path / "state" / "state.json"
    saved = json.loads(path.read_text())
    del saved["identity"][key]
    path.write_text(json.dumps(saved))
    assert make_trainer(tmp_path, tiny_recipe()).run() == 6
