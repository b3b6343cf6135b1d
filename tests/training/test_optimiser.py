"""Each parameter is updated by exactly one optimiser, and bfloat16 products change a step by their rounding alone."""

from dataclasses import replace

import pytest
import torch
from torch import optim

from dspark.training.batches import make_batch
from dspark.training.forced_loss import Objective, forced_loss
from dspark.training.optimiser import build_optimiser
from dspark.training.recipe import OptimiserSection
from dspark.training.teacher import Teacher
from dspark.training.trainer import draft_index
from tests.drafters import tiny
from tests.training.tiny import TinyTarget, tiny_answers, tiny_drafter, tiny_recipe


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_every_parameter_has_one_optimiser(kind: str) -> None:
    drafter = tiny_drafter()
    owned = build_optimiser(OptimiserSection(kind=kind, total_steps=1), drafter).parameters
    assert sorted(map(id, owned)) == sorted(map(id, drafter.parameters()))


def test_muon_takes_the_matrices_of_the_backbone() -> None:
    drafter = tiny_drafter()
    muon, adamw = build_optimiser(OptimiserSection(kind="muon", total_steps=1), drafter).parts
    assert isinstance(muon, optim.Muon)
    assert isinstance(adamw, optim.AdamW)
    names = {id(parameter): name for name, parameter in drafter.named_parameters()}
    matrices = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    layer = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert {name.split(".")[-2] for name in matrices} == {*layer, "fc"}


def test_routers_and_mixings_of_streams_are_matrices_too_and_their_offsets_are_not() -> None:
    """Muon: whatever multiplies a vector, router and mHC included. AdamW: norms, scales, biases, kernels and heads."""
    drafter = tiny.drafter(replace(tiny.PRODUCTION, convolution=tiny.CONVOLVED.convolution))
    muon, adamw = build_optimiser(OptimiserSection(kind="muon", total_steps=1), drafter).parts
    names = {id(parameter): name for name, parameter in drafter.named_parameters()}
    by_muon, by_adamw = (
        {names[id(p)].removesuffix(".weight").split(".")[-1] for group in part.param_groups for p in group["params"]}
        for part in (muon, adamw)
    )
    attention, mlp = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"}
    assert by_muon == {"fc", *attention, *mlp, "gate", "fn", "kernel_projection"}
    assert by_muon.isdisjoint(by_adamw)
    assert {"base", "scale", "base_kernel", "markov_w1", "markov_w2", "q_norm", "norm"} <= by_adamw


def test_the_rate_reaches_every_part() -> None:
    optimiser = build_optimiser(OptimiserSection(kind="muon", total_steps=1), tiny_drafter())
    optimiser.set_rate(0.25)
    assert {group["lr"] for part in optimiser.parts for group in part.param_groups} == {0.25}


@pytest.mark.parametrize("chunk", [None, 7])
def test_bfloat16_products_give_float32_gradients_near_the_exact_ones(chunk: int | None) -> None:
    recipe, target, answers = tiny_recipe(), TinyTarget(), tiny_answers(4)
    drafter = tiny_drafter(draft_vocab_size=20)
    records = Teacher(target, recipe.drafter.target_layer_ids, 31).records(answers)
    batch = make_batch(answers, records, 5, 3, draft_index(drafter), 0)
    found = {}
    for precision in (torch.float32, torch.bfloat16):
        drafter.zero_grad()
        terms = forced_loss(drafter, batch, Objective(recipe.loss.coefficients(3), chunk, precision))
        terms.total.backward()
        assert terms.total.dtype is torch.float32
        assert all(p.grad.dtype is torch.float32 for p in drafter.parameters())
        found[precision] = torch.cat([p.grad.flatten() for p in drafter.parameters()])
    exact, rounded = found[torch.float32], found[torch.bfloat16]
    assert not exact.equal(rounded)
    assert torch.nn.functional.cosine_similarity(exact, rounded, dim=0) > 0.995
