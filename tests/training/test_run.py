"""`train` leaves a drafter directory that loads for its target and no other."""

import dataclasses
import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dspark.data.answers import Answer
from dspark.drafters.registry import load_drafter
from dspark.errors import CompatibilityError, ConfigError
from dspark.training import setup
from dspark.training.algorithms.dspark import DSparkAlgorithm
from dspark.training.recipe import Recipe
from dspark.training.run import train
from dspark.training.state import read_state
from dspark.training.warm_start import draft_vocabulary
from tests.training.tiny import VOCAB, TinyTarget, tiny_answers, tiny_recipe


@pytest.fixture
def answers_file(tmp_path: Path) -> Path:
    return write_answers(tmp_path / "answers.jsonl.gz", tiny_answers())


def write_answers(path: Path, answers: Sequence[Answer]) -> Path:
    with gzip.open(path, "wt") as file:
        for answer in answers:
            file.write(json.dumps(dataclasses.asdict(answer)) + "\n")
    return path


def recipe_for(answers: Path, held_out: int = 2, **optimiser: float) -> Recipe:
    recipe = tiny_recipe(**optimiser)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"answers": answers, "held_out": held_out})})


def test_trains_exports_and_loads(tmp_path: Path, answers_file: Path) -> None:
    recipe = recipe_for(answers_file)
    target = TinyTarget()
    report = train(recipe, target, tmp_path / "run")
    assert report.finished
    assert report.held_out is not None
    drafter = load_drafter(report.drafter_directory, target)
    assert drafter.config.block_size == 3
    assert drafter.draft_token_ids is not None
    assert len(drafter.draft_token_ids) == 20
    config = json.loads((report.drafter_directory / "config.json").read_text())
    assert config["dspark"]["training"]["steps"] == 6
    assert str(tmp_path) not in json.dumps(config)

    stranger = TinyTarget()
    stranger.info = dataclasses.replace(stranger.info, weights_hash="others")
    with pytest.raises(CompatibilityError, match="others"):
        load_drafter(report.drafter_directory, stranger)


def test_training_leaves_the_target_alone(tmp_path: Path, answers_file: Path) -> None:
    recipe = recipe_for(answers_file)
    target = TinyTarget()
    before = target.embedding_weight.clone(), target.lm_head_weight.clone()
    train(recipe, target, tmp_path / "run")
    assert torch.equal(before[0], target.embedding_weight)
    assert torch.equal(before[1], target.lm_head_weight)


def test_a_recipe_for_another_target_is_refused(tmp_path: Path) -> None:
    recipe = tiny_recipe().model_copy(update={"target": "huge"})
    with pytest.raises(CompatibilityError, match="'huge'.*'tiny'"):
        train(recipe, TinyTarget(), tmp_path)


def test_a_drafter_can_be_trained_further(tmp_path: Path, answers_file: Path) -> None:
    recipe = recipe_for(answers_file)
    first = train(recipe, TinyTarget(), tmp_path / "first")
    further = recipe.drafter.model_copy(update={"start_from": first.drafter_directory})
    recipe = recipe.model_copy(
        update={"drafter": further, "optimiser": recipe.optimiser.model_copy(update={"total_steps": 40})}
    )
    second = train(recipe, TinyTarget(), tmp_path / "second")
    assert second.held_out.loss < first.held_out.loss
    assert not second.drafter_directory.samefile(first.drafter_directory)

    shallow = recipe.model_copy(update={"drafter": further.model_copy(update={"markov_rank": 3})})
    with pytest.raises(CompatibilityError, match="markov_rank"):
        train(shallow, TinyTarget(), tmp_path / "third")


def vocabulary(directory: Path, target: TinyTarget) -> list[int]:
    drafter = load_drafter(directory / "drafter", target)
    assert drafter.draft_token_ids is not None
    return drafter.draft_token_ids.tolist()


def test_more_answers_continue_with_the_vocabulary_of_the_saved_run(
    tmp_path: Path, answers_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New answers of rare tokens would change the counts; nor is any start computed again."""
    target = TinyTarget()
    train(recipe_for(answers_file), target, tmp_path / "run")
    before = vocabulary(tmp_path / "run", target)
    others = [t for t in range(VOCAB) if t not in before]
    more = [Answer(f"b-{i}", "math", (3, 4), tuple(others * 3), 0.0) for i in range(20)]
    write_answers(answers_file, [*tiny_answers(), *more])
    monkeypatch.setattr(setup, "draft_vocabulary", None)
    monkeypatch.setattr(DSparkAlgorithm, "start", None)
    assert train(recipe_for(answers_file, total_steps=9), target, tmp_path / "run").step == 9
    assert vocabulary(tmp_path / "run", target) == before


def test_early_states_have_the_vocabulary_of_all_answers(tmp_path: Path, answers_file: Path) -> None:
    """Early versions counted held-out answers too; counting the others alone would permute the drafter's rows."""
    target, run = TinyTarget(), tmp_path / "run"
    train(recipe_for(answers_file, held_out=6), target, run)
    for name in ("state", "stable"):
        tensors = load_file(run / name / "tensors.safetensors")
        del tensors["draft_token_ids"]
        save_file(tensors, run / name / "tensors.safetensors")
        (run / name / "state.json").write_text(json.dumps({"step": read_state(run / name).step}))
    train(recipe_for(answers_file, held_out=6), target, run)
    assert vocabulary(run, target) == draft_vocabulary(tiny_answers(), 20).tolist()
    assert vocabulary(run, target) != draft_vocabulary(tiny_answers()[6:], 20).tolist()


def test_held_out_answers_do_not_reach_the_start(tmp_path: Path) -> None:
    """Two runs that differ in their held-out answers alone export the same vocabulary and weights."""
    answers, target, exported = tiny_answers(), TinyTarget(), []
    for number, held_out in enumerate((answers[:2], [Answer(str(i), "math", (3,), (30,) * 40, 0.0) for i in (0, 1)])):
        file = write_answers(tmp_path / f"{number}.jsonl.gz", [*held_out, *answers[2:]])
        train(recipe_for(file), target, tmp_path / str(number))
        exported.append((tmp_path / str(number) / "drafter" / "model.safetensors").read_bytes())
    assert exported[0] == exported[1]


def test_holding_everything_out_is_refused(tmp_path: Path, answers_file: Path) -> None:
    with pytest.raises(ConfigError, match="8 answers are to be held out of 8"):
        train(recipe_for(answers_file, held_out=8), TinyTarget(), tmp_path / "run")


def test_a_run_beyond_a_lowered_length_is_finished(tmp_path: Path, answers_file: Path) -> None:
    train(recipe_for(answers_file), TinyTarget(), tmp_path / "run")
    report = train(recipe_for(answers_file, total_steps=4), TinyTarget(), tmp_path / "run")
    assert (report.step, report.finished) == (6, True)


def test_the_measured_acceptance_travels_with_the_drafter(tmp_path: Path, answers_file: Path) -> None:
    recipe = tiny_recipe()
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"answers": answers_file})})
    target = TinyTarget()
    report = train(recipe, target, tmp_path / "run")
    assert report.held_out is not None
    acceptance = load_drafter(report.drafter_directory, target).info.acceptance
    assert acceptance.sampled == pytest.approx(report.held_out.acceptance.nan_to_num().tolist(), abs=1e-4)
    assert report.held_out.greedy_acceptance is not None
    assert acceptance.greedy == pytest.approx(report.held_out.greedy_acceptance.nan_to_num().tolist(), abs=1e-4)
    assert acceptance.greedy != acceptance.sampled
