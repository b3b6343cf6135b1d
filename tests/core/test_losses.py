"""The eager losses: values by hand, and who may receive a gradient."""

import math

import pytest
import torch

from dspark.core.losses import LossCoefficients, block_loss, slot_weights, weighted_mean


def block(blocks=2, gamma=3, vocab=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, blocks, gamma, vocab, generator=generator)
    targets = torch.randint(0, vocab, (blocks, gamma), generator=generator)
    confidence = torch.randn(blocks, gamma, generator=generator)
    return logits[0], logits[1], targets, torch.ones(blocks, gamma, dtype=torch.bool), confidence


def test_every_term_by_hand():
    p_d, p_t = torch.tensor([0.5, 0.5]), torch.tensor([0.7, 0.3])
    confidence = torch.tensor([[0.3]])
    loss = block_loss(
        p_d.log()[None, None], p_t.log()[None, None], torch.tensor([[1]]), torch.tensor([[True]]), confidence
    )
    bce = -(0.8 * math.log(torch.sigmoid(torch.tensor(0.3))) + 0.2 * math.log(torch.sigmoid(torch.tensor(-0.3))))
    assert float(loss.cross_entropy) == pytest.approx(math.log(2))
    assert float(loss.l1) == pytest.approx(0.4)  # not halved
    assert float(loss.acceptance) == pytest.approx(0.8)
    assert float(loss.confidence) == pytest.approx(bce)
    assert float(loss.total) == pytest.approx(0.1 * math.log(2) + 0.9 * 0.4 + 1.0 * bce)


def test_slot_weights_decay_by_position_and_vanish_without_supervision():
    weights = slot_weights(torch.tensor([[True, True, False]]), decay=4.0)
    assert weights.tolist() == [[1.0, pytest.approx(math.exp(-0.25)), 0.0]]


def test_unsupervised_slots_do_not_count():
    draft, target, targets, supervised, confidence = block()
    supervised[1, 1:] = False
    reference = block_loss(draft, target, targets, supervised, confidence)
    spoiled = [t.clone() for t in (draft, target, targets, confidence)]
    for tensor in spoiled:
        tensor[1, 1:] = 3
    assert block_loss(spoiled[0], spoiled[1], spoiled[2], supervised, spoiled[3]).total == reference.total


def test_a_step_without_supervision_is_zero_and_not_nan():
    draft, target, targets, supervised, confidence = block()
    draft.requires_grad_()
    total = block_loss(draft, target, targets, torch.zeros_like(supervised), confidence).total
    total.backward()
    assert float(total.detach()) == 0.0
    assert float(draft.grad.abs().max()) == 0.0


def test_the_teacher_receives_no_gradient_even_through_its_head():
    draft, hidden, targets, supervised, confidence = block(vocab=5)
    head = torch.nn.Linear(5, 5)
    block_loss(draft.requires_grad_(), head(hidden), targets, supervised, confidence).total.backward()
    assert head.weight.grad is None
    assert float(draft.grad.abs().sum()) > 0


def test_the_confidence_label_is_detached_but_its_logit_is_not():
    draft, target, targets, supervised, confidence = block()
    only_confidence = LossCoefficients(cross_entropy=0.0, l1=0.0, confidence=1.0)
    draft.requires_grad_()
    confidence.requires_grad_()
    block_loss(draft, target, targets, supervised, confidence, only_confidence).total.backward()
    assert float(draft.grad.abs().max()) == 0.0
    assert float(confidence.grad.abs().min()) > 0.0


def test_dflash_is_cross_entropy_alone():
    draft, target, targets, supervised, _ = block()
    loss = block_loss(draft, target, targets, supervised, None, LossCoefficients.dflash())
    assert loss.total == loss.cross_entropy
    assert float(loss.confidence) == 0.0


def test_weighted_mean_is_the_ratio_of_sums():
    assert float(weighted_mean(torch.tensor([1.0, 4.0]), torch.tensor([3.0, 1.0]))) == 1.75
