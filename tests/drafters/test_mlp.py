"""The mixture of experts: its equation, its balance, and its start."""

from collections import Counter

import pytest
import torch

from dspark.drafters.ingredients import Experts
from dspark.drafters.mlp import MixtureOfExperts
from tests.drafters.tiny import tensors

WIDTH, EXPERTS = 6, Experts(routed=5, active=2, width=4)


def mixture() -> MixtureOfExperts:
    module = MixtureOfExperts(WIDTH, 8, EXPERTS)
    with torch.no_grad():
        for seed, parameter in enumerate(module.parameters()):
            parameter.copy_(tensors(*parameter.shape, seed=seed))
    return module


@torch.no_grad()
def test_it_is_the_equation_for_every_slot():
    module, x = mixture(), tensors(3, 4, WIDTH, seed=40)
    module.e_score_correction_bias.copy_(torch.tensor([0.3, -0.2, 0.0, 0.1, 0.0]))
    found = module(x)
    for slot, output in zip(x.flatten(0, 1), found.flatten(0, 1), strict=True):
        scores = torch.sigmoid(module.gate.weight @ slot)
        chosen = sorted(range(5), key=lambda e: -float(scores[e] + module.e_score_correction_bias[e]))[:2]
        total = sum(scores[e] for e in chosen)
        expected = module.shared_experts(slot) + sum(scores[e] / total * module.experts[e](slot) for e in chosen)
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_bias_decides_who_is_chosen_and_not_how_much_they_count():
    module, x = mixture(), tensors(7, WIDTH, seed=40)
    module.e_score_correction_bias[3] = 9.0
    chosen, weights = module.route(x)
    assert (chosen == 3).any(-1).all()
    scores = torch.sigmoid(x @ module.gate.weight.T).gather(1, chosen)
    torch.testing.assert_close(weights, scores / scores.sum(-1, keepdim=True))


def test_load_is_counted_while_learning_only_and_moves_the_bias_against_it():
    module, x = mixture(), tensors(20, WIDTH, seed=40)
    with torch.no_grad():
        module(x)
    module.eval()(x)
    assert not module.load.any()
    module.train()(x)
    counts = Counter(module.route(x)[0].flatten().tolist())
    assert module.load.tolist() == [counts[e] for e in range(5)]
    module.rebalance(speed=0.5)
    assert module.e_score_correction_bias.tolist() == [0.5 * ((counts[e] < 8) - (counts[e] > 8)) for e in range(5)]
    assert not module.load.any()


def test_rebalancing_evens_out_a_lopsided_router():
    module = mixture()
    x = tensors(200, WIDTH, seed=40) + module.gate.weight[0].detach()

    def spread() -> float:
        module(x)
        return float(module.load.max() / module.load.mean())

    before = spread()
    for _ in range(300):
        module.rebalance(speed=0.005)
        after = spread()
    assert before > 2
    assert after < 1.35


def test_the_bias_gets_no_gradient_and_idle_experts_do():
    module = mixture()
    module.e_score_correction_bias[4] = -9.0
    module(tensors(3, WIDTH, seed=40)).square().sum().backward()
    assert not module.e_score_correction_bias.requires_grad
    assert all(p.grad is not None for p in module.parameters())
    assert not module.experts[4].down_proj.weight.grad.any()


@torch.no_grad()
def test_a_fresh_one_is_its_shared_expert():
    module, x = mixture(), tensors(3, 4, WIDTH, seed=40)
    module.start_as_identity()
    assert torch.equal(module(x), module.shared_experts(x))


@pytest.mark.parametrize("rows", [0, 1])
def test_few_slots(rows):
    assert mixture()(tensors(rows, WIDTH)).shape == (rows, WIDTH)


def test_processes_balance_what_they_served_together():
    first, second = mixture(), mixture()
    first.load.copy_(torch.tensor([9.0, 1, 0, 5, 5]))
    second.load.copy_(torch.tensor([0.0, 1, 9, 5, 5]))
    total = first.load + second.load
    for module in (first, second):
        module.rebalance(lambda own: total)
    assert torch.equal(first.e_score_correction_bias, second.e_score_correction_bias)
    assert first.e_score_correction_bias.sign().tolist() == [-1, 1, -1, -1, -1]
