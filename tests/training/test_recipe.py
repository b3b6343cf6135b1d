"""Recipes refuse what they do not know and say what was meant."""

import math
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from dspark.core.losses import LossCoefficients
from dspark.drafters.config import check_target_layers, spread_target_layers
from dspark.errors import ConfigError, FormatError
from dspark.nn.kernel_choice import resolve_precision
from dspark.training.identity import identity_of
from dspark.training.recipe import OptimiserSection, Recipe, read_recipe
from tests.conftest import ROOT
from tests.training.tiny import TinyTarget, tiny_recipe

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
SMALL = ROOT / "recipes" / "smollm2-135m-dspark.yaml"
PAPER = {"qwen3-4b": 36, "qwen3-8b": 36, "qwen3-14b": 40, "gemma4-12b": 48}
"""Recipes of the paper, and the layers of their targets."""


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_shipped_recipes_are_valid(path: Path) -> None:
    target = read_recipe(path).target.lower().replace("gemma-4", "gemma4").rpartition("/")[2]
    assert target.startswith(path.stem.rpartition("-")[0])


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_are_the_papers(name: str) -> None:
    """Table of hyper-parameters in DeepSpec: rate, batch, epochs, anchors, loss, warm-up; taps by its rule."""
    recipe = read_recipe(ROOT / "recipes" / f"{name}-dspark.yaml")
    data, drafter, settled = recipe.data, recipe.drafter, recipe.settled(1_350_000)
    assert (data.answers_per_step, data.anchors_per_answer, data.max_length) == (512, 512, 4096)
    assert (drafter.num_hidden_layers, drafter.block_size, drafter.markov_rank) == (5, 7, 256)
    assert (drafter.warm_start, drafter.bigram_start, drafter.draft_vocab_size) == (False, False, None)
    assert recipe.loss.coefficients(7) == LossCoefficients(0.1, 0.9, 1.0, 4.0)
    assert (settled.optimiser.total_steps, settled.optimiser.warmup_steps) == (26_360, 1054)
    assert max(settled.optimiser.rate(step) for step in range(0, 26_360, 10)) == pytest.approx(6e-4, rel=1e-3)
    spread = spread_target_layers(PAPER[name])
    assert drafter.target_layer_ids == ((5, 17, 29, 41, 46) if name.startswith("gemma") else spread)
    check_target_layers(drafter.target_layer_ids, PAPER[name])


def test_recipes_without_an_algorithm_mean_dspark() -> None:
    text = yaml.safe_load(SMALL.read_text())
    text.pop("algorithm", None)
    recipe = Recipe.model_validate(text | {"drafter": {"target_layer_ids": [1], "mask_token_id": 3}})
    assert recipe.algorithm == "dspark"
    assert recipe.drafter.markov_rank == 128


def test_overrides_replace_single_values() -> None:
    recipe = read_recipe(SMALL, ("optimiser.total_steps=7", "loss.decay=2.5"))
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
        ("drafter.mask_token=1", "drafter.mask_token: unknown key, did you mean 'mask_token_id'"),
        ("data.total_step=1", "data.total_step: unknown key, did you mean 'optimiser.total_steps'"),
        ("evaluation.patienc=1", "evaluation.patienc: unknown key, did you mean 'patience'"),
        ("blocks=[{from_stp: 5, size: 3}]", r"blocks\.0\.from_stp: unknown key, did you mean 'from_step'"),
        ("optimizer.total_steps=3", "optimizer: unknown key, did you mean 'optimiser'"),
        ("algorithm=eagle3", "drafter.markov_rank: a key of algorithm dspark, not of eagle3; remove it"),
        ("zzz=1", "zzz: unknown key$"),
        ("loss.decay=beta", "loss.decay"),
        ("loss.decay=0", "loss.decay"),
        ("optimiser.epochs=3", "optimiser: .*total_steps .* or epochs, one of the two"),
        ("optimiser.total_steps=0", "optimiser: .*total_steps .* or epochs, one of the two"),
        ("optimiser.schedule=cosine", "optimiser: .*drop cooldown_steps"),
        ("loss.decay=[", "loss.decay=.*is not a YAML value"),
        ("blocks=[{from_step: 5, size: 3}, {from_step: 2, size: 7}]", r"blocks: .*must ascend.*\[5, 2\]"),
    ],
)
def test_bad_keys_and_values_are_named(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_recipe(SMALL, (override,))


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
    assert answers.resolve() == (ROOT.parent / f"shared/data/train/{path.stem.rpartition('-')[0]}.jsonl.gz").resolve()


def test_paths_start_at_the_recipe_and_those_of_overrides_where_they_are_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    text = SMALL.read_text().replace("drafter:", "drafter:\n  start_from: ../other")
    (tmp_path / "recipe.yaml").write_text(text.replace("../../shared/data/train/", "near/"))
    recipe = read_recipe(tmp_path / "recipe.yaml")
    assert recipe.data.answers == tmp_path / "near/smollm2-135m.jsonl.gz"
    assert recipe.drafter.start_from == tmp_path / "../other"
    typed = read_recipe(tmp_path / "recipe.yaml", ("data.answers=near.jsonl", "drafter.start_from=/far"))
    assert (typed.data.answers, typed.drafter.start_from) == (Path("near.jsonl"), Path("/far"))


def cosine(**settings: float) -> OptimiserSection:
    return OptimiserSection(schedule="cosine", learning_rate=1.0, **settings)


def test_a_cosine_warms_up_falls_through_its_half_and_ends_near_zero() -> None:
    rates = [cosine(warmup_steps=4, total_steps=24).rate(step) for step in range(24)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4] == 1.0
    assert rates[14] == pytest.approx(0.5)
    assert rates[-1] == pytest.approx(0.5 * (1 + math.cos(math.pi * 19 / 20)))
    assert all(later < earlier for earlier, later in pairwise(rates[4:]))


def test_epochs_and_shares_are_counted_out() -> None:
    settled = cosine(epochs=2.5, warmup_share=0.1).settled(40)
    assert (settled.total_steps, settled.warmup_steps, settled.epochs) == (100, 10, None)
    assert settled.settled(7) == settled
    assert cosine(total_steps=9, warmup_steps=2).settled(40) == cosine(total_steps=9, warmup_steps=2)


def test_a_settled_recipe_knows_its_precision() -> None:
    recipe = read_recipe(SMALL, ("precision=auto",))
    assert recipe.settled(100).precision == resolve_precision("auto")
    assert [resolve_precision("auto", frozenset(flags)) for flags in ({"amx_bf16"}, {"avx512f"})] == ["bf16", "fp32"]
    assert resolve_precision("bf16", frozenset()) == "bf16"


def test_decay_may_be_tied_to_the_block() -> None:
    recipe = read_recipe(SMALL, ("loss.decay=gamma",))
    assert recipe.loss.coefficients(7).decay == 7.0
    assert recipe.loss.coefficients(3).decay == 3.0


def test_the_length_of_a_cosine_belongs_to_the_run() -> None:
    info = TinyTarget().info
    constant, falling = tiny_recipe(), tiny_recipe(schedule="cosine", cooldown_steps=0)
    assert "optimiser.total_steps" not in identity_of(constant, info)
    assert identity_of(falling, info)["optimiser.total_steps"] == 6


@pytest.mark.parametrize("kind", ["rnn", "selector"])
def test_bigrams_start_only_heads_that_they_fit(kind: str) -> None:
    tree = tiny_recipe().model_dump()
    tree["drafter"] |= {"markov_head_type": kind, "bigram_start": True}
    with pytest.raises(ValidationError, match="set bigram_start to false"):
        Recipe.model_validate(tree)
    tree["drafter"]["bigram_start"] = False
    assert Recipe.model_validate(tree).drafter.markov_head_type == kind


@pytest.mark.parametrize(
    ("key", "value"), [("experts", {"routed": 2, "top": 1}), ("convolution", {"taps": 0}), ("hyper_connections", 3)]
)
def test_ingredients_are_read_strictly(key: str, value: object) -> None:
    tree = tiny_recipe().model_dump()
    tree["drafter"][key] = value
    with pytest.raises(ValidationError, match=key):
        Recipe.model_validate(tree)
