"""Several processes take the step that one takes, and any number of processes reads what any number saved."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dspark.data.answers import split_answers
from dspark.errors import ConfigError, FormatError
from dspark.training.recipe import Recipe
from dspark.training.replica import plain
from dspark.training.setup import build_drafter
from dspark.training.state import TrainingState, load_state, read_state, save_state
from dspark.training.step import train_step
from dspark.training.teacher import Teacher
from dspark.training.trainer import Trainer
from dspark.training.world import ALONE, World
from tests.training.gloo import gloo
from tests.training.tiny import TinyTarget, tiny_answers, tiny_recipe


def divided(micro_batches: int, answers_per_step: int = 4, **changes: Any) -> Recipe:
    data = {**tiny_recipe().data.model_dump(), "answers_per_step": answers_per_step, "micro_batches": micro_batches}
    return Recipe.model_validate({**tiny_recipe().model_dump(), "data": data, **changes})


def here() -> World:
    return World.of(torch.distributed.group.WORLD) if torch.distributed.is_initialized() else ALONE


def make_trainer(recipe: Recipe, directory: Path = Path("unused"), awake: bool = False) -> Trainer:
    """The trainer of `recipe`; `awake`: with random weights instead of those that start as the identity."""
    target, answers = TinyTarget(), split_answers(tiny_answers(), recipe.data.held_out)
    teacher = Teacher(target, (0, 3), recipe.data.teacher_top_k)
    drafter = build_drafter(recipe, target, answers.train, teacher)
    if awake:
        with torch.no_grad():
            generator = torch.Generator().manual_seed(5)
            for parameter in drafter.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return Trainer(recipe, drafter, teacher, answers, directory, world=here())


def first_step(recipe: Recipe) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Figures of the first step, and its gradients."""
    trainer = make_trainer(recipe)
    # 2 is a bound that this step's gradient exceeds: clipping sees the norm of all shards.
    result = train_step(
        trainer.replica, trainer.optimiser, trainer.batches(0), trainer.objective, 0.01, 2.0, trainer.loss, here()
    )
    gradients = {name: plain(p.grad).clone() for name, p in trainer.drafter.named_parameters()}
    return result.as_json(), gradients


def first_steps(recipes: list[Recipe]) -> list[tuple[dict[str, Any], dict[str, Tensor]]]:
    return [first_step(recipe) for recipe in recipes]


def assert_same_step(found: tuple[dict[str, Any], dict[str, Tensor]], expected: tuple[Any, dict[str, Tensor]]) -> None:
    for name in ("loss", "cross_entropy", "total_variation", "confidence", "gradient_norm", "tau"):
        assert found[0][name] == pytest.approx(expected[0][name], rel=1e-5), name
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-5, atol=1e-5, msg=name)


def test_every_division_of_a_step_gives_its_loss_and_gradients() -> None:
    """Answers differ in length, so a mean of the parts' means would be off. Chunked losses take other ways."""
    whole = first_step(divided(1))
    chunks = {"loss": {"vocabulary_chunk": 7}}
    assert whole[0]["gradient_norm"] > 2
    assert_same_step(first_step(divided(4)), whole)
    for size, micro_batches in ((2, 2), (4, 1)):
        recipes = [divided(micro_batches), divided(micro_batches, **chunks)]
        for steps in gloo(size, first_steps, recipes):
            for step in steps:
                assert_same_step(step, whole)


def test_uneven_shares_count_by_their_slots() -> None:
    """Five answers in three micro-batches: 2, 2 and 1."""
    assert_same_step(first_step(divided(3, 5)), first_step(divided(1, 5)))


def test_a_share_without_an_answer_is_refused() -> None:
    with pytest.raises(ConfigError, match="4 answers cannot be divided in 1 processes x 5 micro-batches"):
        make_trainer(divided(5))
    with pytest.raises(ConfigError, match="6 answers cannot"):
        make_trainer(divided(7, 20))


def bfloat16_and_muon() -> list[tuple[float, list[torch.dtype]]]:
    """Losses of two steps each; gathered parameters, gradients and moments must be float32."""
    found = []
    for changes in ({"precision": "bf16"}, {"optimiser": {**tiny_recipe().optimiser.model_dump(), "kind": "muon"}}):
        trainer = make_trainer(divided(1, **changes))
        for step in (0, 1):
            result, _ = trainer._train(trainer.batches(step), 0.01)
        parameters = list(trainer.drafter.parameters())
        moments = [m for p in parameters for m in trainer.optimiser.moments(p).values()]
        kinds = {t.dtype for t in [*parameters, *moments, *(p.grad for p in parameters)]}
        with trainer.replica.whole():
            exported = trainer.drafter.state_dict().values()
            kinds |= {t.dtype for t in exported}
            assert not any(isinstance(t, DTensor) for t in exported)
        found.append((result.loss, list(kinds)))
    return found


def test_bfloat16_products_and_muon_work_on_shards() -> None:
    """Rounding in bfloat16 depends on shapes, so these are near the lone process's figures, not equal."""
    alone = bfloat16_and_muon()
    for found in gloo(2, bfloat16_and_muon):
        for (loss, kinds), (expected, _) in zip(found, alone, strict=True):
            assert kinds == [torch.float32]
            assert loss == pytest.approx(expected, rel=2e-2)


PRODUCTION = {
    **tiny_recipe().drafter.model_dump(),
    "sliding_window": 6,
    "experts": {"routed": 8, "active": 2, "width": 8},
    "hyper_connections": {"streams": 2, "iterations": 4},
}
"""The paper's production drafter, with experts that nobody chooses."""


def mixture_steps(recipes: list[Recipe]) -> list[tuple[Any, dict[str, Tensor], Tensor]]:
    """Figures and gradients of a first step with awake experts, and the biases that balance them after two more."""
    found = []
    for recipe in recipes:
        trainer = make_trainer(recipe, awake=True)
        step = trainer.batches(0)
        result = train_step(trainer.replica, trainer.optimiser, step, trainer.objective, 0.0, 2.0, trainer.loss, here())
        gradients = {name: plain(p.grad).clone() for name, p in trainer.drafter.named_parameters()}
        for number in (1, 2):
            trainer._train(trainer.batches(number), 1e-3)
        found.append((result.as_json(), gradients, trainer.drafter.draft_layers()[0].mlp.e_score_correction_bias))
    return found


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_a_mixture_of_experts_takes_the_same_step_in_several_processes(kind: str) -> None:
    """Slots choose experts by themselves, wherever they are; the load that moves the biases is that of all."""
    optimiser = {**tiny_recipe().optimiser.model_dump(), "kind": kind}
    ways = [divided(parts, drafter=PRODUCTION, optimiser=optimiser) for parts in (1, 2, 4)]
    ((figures, gradients, bias),) = mixture_steps(ways[:1])
    assert gradients["layers.0.mlp.gate.weight"].any()
    assert {bool(gradient.any()) for name, gradient in gradients.items() if ".experts." in name} == {True, False}
    assert bias.unique().numel() > 1
    for steps in (mixture_steps(ways[2:]), *gloo(2, mixture_steps, ways[:2])):
        for found_figures, found_gradients, found_bias in steps:
            assert_same_step((found_figures, found_gradients), (figures, gradients))
            assert torch.equal(found_bias, bias)


def trained_and_saved(directory: Path) -> dict[str, Tensor]:
    trainer = make_trainer(divided(1))
    trainer._train(trainer.batches(0), 0.01)
    save_state(directory, trainer.drafter, trainer.optimiser, saved_state(trainer), trainer.world)
    return contents(trainer)


def saved_state(trainer: Trainer) -> TrainingState:
    return TrainingState(1, None, {"seed": 1}, trainer.drafter.draft_token_ids)


def loaded(directory: Path) -> dict[str, Tensor]:
    trainer = make_trainer(divided(1))
    assert load_state(directory, trainer.drafter, trainer.optimiser, trainer.world).step == 1
    return contents(trainer)


def contents(trainer: Trainer) -> dict[str, Tensor]:
    found = {}
    for name, parameter in trainer.drafter.named_parameters():
        found[name] = plain(parameter.detach()).clone()
        found |= {f"{key}.{name}": plain(m) for key, m in trainer.optimiser.moments(parameter).items()}
    return found


def assert_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(found[name].equal(value) for name, value in expected.items())


def test_any_number_of_processes_reads_a_state(tmp_path: Path) -> None:
    expected = gloo(2, trained_and_saved, tmp_path / "two")[0]
    assert_equal(loaded(tmp_path / "two"), expected)
    assert len(list((tmp_path / "two").glob("*.safetensors"))) == 2
    alone = trained_and_saved(tmp_path / "one")
    assert [path.name for path in (tmp_path / "one").glob("*.safetensors")] == ["tensors.safetensors"]
    for rank in gloo(3, both_loaded, tmp_path):
        assert_equal(rank[0], expected)
        assert_equal(rank[1], alone)


def both_loaded(directory: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    return loaded(directory / "two"), loaded(directory / "one")


def test_a_lost_shard_is_named(tmp_path: Path) -> None:
    """Without a check its rows would stay as they were made."""
    gloo(2, trained_and_saved, tmp_path / "two")
    assert read_state(tmp_path / "two").draft_token_ids is not None
    next((tmp_path / "two").glob("shard-00001*")).unlink()
    with pytest.raises(FormatError, match="not a training state: .*shard-00001"):
        loaded(tmp_path / "two")
