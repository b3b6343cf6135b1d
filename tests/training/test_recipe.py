"""Recipes refuse what they do not know and say what was meant."""

from pathlib import Path

import pytest
import yaml

from dspark.errors import ConfigError, FormatError
from dspark.training.recipe import Recipe, read_recipe
from tests.conftest import ROOT
from tests.training.tiny import tiny_recipe

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(path: Path) -> None:
    assert read_recipe(path).target == "smollm2-135m"


def test_recipes_without_an_algorithm_mean_dspark() -> None:
    text = yaml.safe_load(RECIPES[0].read_text())
    text.pop("algorithm", None)
    recipe = Recipe.model_validate(text | {"drafter": {"target_layer_ids": [1], "mask_token_id": 3}})
    assert recipe.algorithm == "dspark"
    assert recipe.drafter.markov_rank == 128


def test_overrides_replace_single_values() -> None:
    recipe = read_recipe(RECIPES[0], ("optimiser.total_steps=7", "loss.decay=2.5"))
    assert (recipe.optimiser.total_steps, recipe.loss.decay) == (7, 2.5)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimiser.learning_rat=1", "optimiser.learning_rat: unknown key, did you mean 'learning_rate'"),
        ("optimiser.learning_rate=-1", "optimiser.learning_rate.*greater than 0.*-1"),
        ("optimiser.learning_rate", "has no '='"),
        ("target.name=x", "target is a value"),
        ("drafter.markov_ran=1", "drafter.markov_ran: unknown key, did you mean 'markov_rank'"),
        ("drafter.block_size=0", "drafter.block_size: .*greater than or equal to 1.*0"),
        ("algorithm=dspork", "algorithm: .*no algorithm 'dspork', did you mean 'dspark'"),
        ("algorithm=magic", "algorithm: .*no algorithm 'magic', expected one of dspark"),
        ("loss.decay=[", "loss.decay=.*is not a YAML value"),
        ("blocks=[{from_step: 5, size: 3}, {from_step: 2, size: 7}]", r"blocks: .*must ascend.*\[5, 2\]"),
    ],
)
def test_bad_keys_and_values_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(RECIPES[0], (override,))


@pytest.mark.parametrize(("text", "message"), [("a: [", "not YAML"), ("- 1", "holds a list")])
def test_files_that_are_no_recipe(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=message):
        read_recipe(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="does not exist"):
        read_recipe(tmp_path / "none.yaml")


def test_rate_warms_up_stays_and_cools_to_almost_zero() -> None:
    optimiser = tiny_recipe(learning_rate=1.0, warmup_steps=3, cooldown_steps=4, total_steps=20).optimiser
    rates = [optimiser.rate(step) for step in range(20)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(rates[4:16]) == {1.0}
    assert rates[16:] == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_block_curriculum() -> None:
    recipe = tiny_recipe()
    assert [recipe.block_size(step) for step in (0, 2, 3, 9)] == [2, 2, 3, 3]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_look_for_answers_beside_the_repository(path: Path) -> None:
    answers = read_recipe(path).data.answers
    assert answers.resolve() == (ROOT.parent / "shared/data/train/smollm2-135m.jsonl.gz").resolve()


def test_paths_start_at_the_recipe_and_those_of_overrides_where_they_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = RECIPES[0].read_text().replace("drafter:", "drafter:\n  start_from: ../other")
    (tmp_path / "recipe.yaml").write_text(text.replace("../../shared/data/train/", "near/"))
    recipe = read_recipe(tmp_path / "recipe.yaml")
    assert recipe.data.answers == tmp_path / "near/smollm2-135m.jsonl.gz"
    assert recipe.drafter.start_from == tmp_path / "../other"
    typed = read_recipe(tmp_path / "recipe.yaml", ("data.answers=near.jsonl", "drafter.start_from=/far"))
    assert (typed.data.answers, typed.drafter.start_from) == (Path("near.jsonl"), Path("/far"))
