"""Eagle3 and MTP-1 through the same trainer: they learn, resume, export, load, and start from their target."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch

from dspark.data.answers import Answer
from dspark.drafters.registry import load_drafter
from dspark.errors import CompatibilityError, ConfigError
from dspark.training.algorithms.registry import ALGORITHMS
from dspark.training.batches import make_batch
from dspark.training.forced_loss import Objective, forced_loss
from dspark.training.recipe import Recipe, read_recipe
from dspark.training.run import train
from dspark.training.setup import build_drafter, teacher_of
from dspark.training.trainer import draft_index
from tests.training.test_run import write_answers
from tests.training.tiny import WIDTH, TinyTarget, tiny_answers, tiny_recipe

DRAFTERS = {"eagle3": {"target_layer_ids": [0, 2, 4], "block_size": 3}, "mtp": {}}
NAMES = pytest.mark.parametrize("name", DRAFTERS)


def recipe_for(name: str, answers: Path = Path("unused"), steps: int = 6, **drafter: object) -> Recipe:
    tree = tiny_recipe(total_steps=steps).model_dump() | {
        "algorithm": name,
        "drafter": DRAFTERS[name] | {"draft_vocab_size": 20} | drafter,
        "blocks": [],
    }
    tree["data"]["answers"] = answers
    return Recipe.model_validate(tree)


@pytest.fixture
def answers_file(tmp_path: Path) -> Path:
    return write_answers(tmp_path / "answers.jsonl.gz", tiny_answers())


@NAMES
def test_it_learns_exports_and_loads(tmp_path: Path, answers_file: Path, name: str) -> None:
    target, recipe = TinyTarget(), recipe_for(name, answers_file, steps=40)
    first = train(recipe_for(name, answers_file, steps=1), target, tmp_path / "short")
    report = train(recipe, target, tmp_path / "run")
    assert report.held_out is not None
    assert report.held_out.loss < 0.9 * first.held_out.loss
    gamma = recipe.drafter.block_size
    assert len(report.held_out.acceptance) == len(report.held_out.greedy_acceptance) == gamma
    drafter = load_drafter(report.drafter_directory, target)
    assert drafter.info.gamma == gamma
    assert len(drafter.draft_token_ids) == 20
    assert len(drafter.info.acceptance.sampled) == gamma
    described = json.loads((report.drafter_directory / "config.json").read_text())["dspark"]["training"]
    assert described["recipe"]["algorithm"] == name
    assert described["recipe"]["drafter"]["block_size"] == gamma


@NAMES
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, answers_file: Path, name: str) -> None:
    target, recipe = TinyTarget(), recipe_for(name, answers_file)
    straight = train(recipe, target, tmp_path / "straight")
    train(recipe, target, tmp_path / "cut", watch=lambda progress: signal_stop(progress.step))
    resumed = train(recipe, target, tmp_path / "cut")
    files = [(report.drafter_directory / "model.safetensors").read_bytes() for report in (straight, resumed)]
    assert files[0] == files[1]


def signal_stop(step: int) -> None:
    if step == 2:
        os.kill(os.getpid(), signal.SIGTERM)


@NAMES
def test_a_trained_drafter_can_be_trained_further_and_only_as_what_it_is(
    tmp_path: Path, answers_file: Path, name: str
) -> None:
    target = TinyTarget()
    start = train(recipe_for(name, answers_file), target, tmp_path / "run").drafter_directory
    assert train(recipe_for(name, answers_file, start_from=start), target, tmp_path / "more").finished
    other = next(kind for kind in DRAFTERS if kind != name)
    with pytest.raises(CompatibilityError, match="its kind"):
        train(recipe_for(other, answers_file, start_from=start), target, tmp_path / "other")


@NAMES
def test_a_run_of_another_algorithm_is_not_continued(tmp_path: Path, answers_file: Path, name: str) -> None:
    target = TinyTarget()
    train(recipe_for(name, answers_file), target, tmp_path / "run")
    other = next(kind for kind in DRAFTERS if kind != name)
    with pytest.raises(CompatibilityError, match=f"algorithm '{name}', now '{other}'"):
        train(recipe_for(other, answers_file), target, tmp_path / "run")


@NAMES
@pytest.mark.parametrize("chunk", [None, 7])
def test_bfloat16_products_give_float32_gradients_near_the_exact_ones(name: str, chunk: int | None) -> None:
    target, recipe = TinyTarget(), recipe_for(name, warm_start=False)  # the tiny target's weights are large
    answers: list[Answer] = tiny_answers(4)
    teacher = teacher_of(recipe, target, None)
    drafter = build_drafter(recipe, target, answers, teacher)
    batch = make_batch(answers, teacher.records(answers), 5, recipe.drafter.block_size, draft_index(drafter), 0)
    found = {}
    for precision in (torch.float32, torch.bfloat16):
        drafter.zero_grad()
        terms = forced_loss(
            drafter, batch, Objective(recipe.loss.coefficients(recipe.drafter.block_size), chunk, precision)
        )
        terms.total.backward()
        assert all(p.grad.dtype is torch.float32 for p in drafter.parameters())
        found[precision] = torch.cat([p.grad.flatten() for p in drafter.parameters()])
    exact, rounded = found[torch.float32], found[torch.bfloat16]
    assert not exact.equal(rounded)
    assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.99


@NAMES
def test_a_warm_start_is_the_targets_last_layer(name: str) -> None:
    target, recipe = TinyTarget(), recipe_for(name)
    drafter = build_drafter(recipe, target, tiny_answers(), teacher_of(recipe, target, None))
    weights, layer = target.layer_weights(target.info.num_layers - 1), dict(drafter.layers[0].named_parameters())
    for own in ("self_attn.o_proj.weight", "mlp.down_proj.weight", "post_attention_layernorm.weight"):
        assert torch.equal(layer[own], weights[own]), own
    assert torch.equal(layer["self_attn.q_proj.weight"][:, -WIDTH:], weights["self_attn.q_proj.weight"])
    reads = layer["hidden_norm.weight" if name == "eagle3" else "input_layernorm.weight"]
    assert torch.equal(reads, weights["input_layernorm.weight"])
    cold = build_drafter(recipe_for(name, warm_start=False), target, tiny_answers(), teacher_of(recipe, target, None))
    assert not torch.equal(cold.layers[0].self_attn.o_proj.weight, weights["self_attn.o_proj.weight"])


@pytest.mark.parametrize(
    ("name", "drafter", "message"),
    [
        ("mtp", "block_size: 2", "drafter.block_size: .*1"),
        ("mtp", "target_layer_ids: [1]", "drafter.target_layer_ids: a key of algorithm dspark and eagle3, not of mtp"),
        ("eagle3", "{target_layer_ids: [1], markov_rank: 3}", "markov_rank: a key of algorithm dspark, not of eagle3"),
        ("eagle3", "block_size: 7", "drafter.target_layer_ids: Field required"),
    ],
)
def test_keys_of_other_algorithms_are_refused(tmp_path: Path, name: str, drafter: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    drafter = drafter if drafter.startswith("{") else "{" + drafter + "}"
    path.write_text(
        f"target: t\nalgorithm: {name}\ndrafter: {drafter}\ndata: {{answers: a}}\noptimiser: {{total_steps: 1}}"
    )
    with pytest.raises(ConfigError, match=message):
        read_recipe(path)


def test_every_algorithm_is_named_in_the_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs/algorithms.md").read_text()
    assert [name for name in ALGORITHMS if f"`{name}`" not in text] == []
