"""`train` leaves a drafter directory that loads for its target and no other."""

import dataclasses
import gzip
import json
from pathlib import Path

import pytest
import torch

from dspark.drafters.registry import load_drafter
from dspark.errors import CompatibilityError
from dspark.training.run import train
from tests.training.tiny import TinyTarget, tiny_answers, tiny_recipe


@pytest.fixture
def answers_file(tmp_path: Path) -> Path:
    path = tmp_path / "answers.jsonl.gz"
    with gzip.open(path, "wt") as file:
        for answer in tiny_answers():
            file.write(json.dumps(dataclasses.asdict(answer)) + "\n")
    return path


def test_trains_exports_and_loads(tmp_path: Path, answers_file: Path) -> None:
    recipe = tiny_recipe()
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"answers": answers_file})})
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
    recipe = tiny_recipe()
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"answers": answers_file})})
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
    recipe = tiny_recipe()
    recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"answers": answers_file})})
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
