"""Sequential heads: stepping equals teacher forcing, and each reads what its equation names."""

from dataclasses import replace

import pytest
import torch

from dspark.drafters.config import HeadKind
from dspark.drafters.heads import build_head
from tests.drafters.tiny import CONFIG, KINDS, drafter, tensors, with_head

HIDDEN = tensors(2, 4, CONFIG.hidden_size, seed=3)
PREVIOUS = torch.tensor([[1, 5, 2, 7], [4, 4, 9, 30]])


def head(kind):
    return drafter(with_head(kind)).markov_head


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_stepping_equals_teacher_forcing(kind):
    module = head(kind)
    forced = module.latents(HIDDEN, module.embed(PREVIOUS))
    state = None
    for slot in range(4):
        latent, state = module.step(HIDDEN[:, slot], module.embed(PREVIOUS[:, slot]), state)
        torch.testing.assert_close(latent, forced[:, slot], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "by_earlier_token", "by_own_hidden", "by_earlier_hidden"),
    [(HeadKind.VANILLA, False, False, False), (HeadKind.GATED, False, True, False), (HeadKind.RNN, True, True, True)],
)
@torch.no_grad()
def test_what_the_last_slot_reads(kind, by_earlier_token, by_own_hidden, by_earlier_hidden):
    module = head(kind)

    def last(hidden=HIDDEN, previous=PREVIOUS):
        return module.latents(hidden, module.embed(previous))[:, -1]

    def moves(**change):
        return not torch.equal(last(**change), last())

    earlier_token, own, earlier = PREVIOUS.clone(), HIDDEN.clone(), HIDDEN.clone()
    earlier_token[:, 1] = 11
    own[:, -1] += 1
    earlier[:, 0] += 1
    assert moves(previous=earlier_token) == by_earlier_token
    assert moves(hidden=own) == by_own_hidden
    assert moves(hidden=earlier) == by_earlier_hidden


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_blocks_do_not_mix(kind):
    module = head(kind)
    alone = module.latents(HIDDEN[1:], module.embed(PREVIOUS[1:]))
    torch.testing.assert_close(module.latents(HIDDEN, module.embed(PREVIOUS))[1:], alone, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def test_the_recurrence_by_hand():
    """Two slots of rank 1 and width 1 with W picking one input per output row."""
    config = replace(CONFIG, hidden_size=1, markov_rank=1, markov_head_type=HeadKind.RNN)
    module = build_head(config)
    # Input order [s ; e ; h], output rows (gate, candidate, output): gate <- h, candidate <- e, output <- s.
    module.joint_proj.weight.copy_(torch.tensor([[0.0, 0, 1], [0, 1, 0], [1, 0, 0]]))
    module.joint_proj.bias.zero_()
    hidden, embedded = torch.tensor([[[0.5], [1.0]]]), torch.tensor([[[2.0], [3.0]]])
    first_state = (1 - torch.sigmoid(torch.tensor(0.5))) * torch.tanh(torch.tensor(2.0))
    latents = module.latents(hidden, embedded)
    assert float(latents[0, 0]) == 0.0  # the output reads the state before the update, which is 0
    assert float(latents[0, 1]) == pytest.approx(float(torch.tanh(first_state)))


def test_rank_zero_has_no_head():
    config = replace(CONFIG, markov_rank=0, enable_confidence_head=False)
    assert build_head(config) is None


@torch.no_grad()
def test_the_selector_is_the_released_edge():
    """edge(p -> c) = unary[c] + < A[p] * H(h), B[c] >."""
    module = drafter(with_head(HeadKind.SELECTOR))
    base = module.base_logits(HIDDEN)
    head = module.markov_head
    a, b, h = head.markov_w1.weight, head.markov_w2.weight, head.hidden_projection.weight
    for block in range(2):
        for slot in range(4):
            gate = h @ HIDDEN[block, slot]
            expected = base[block, slot] + b @ (a[PREVIOUS[block, slot]] * gate)
            torch.testing.assert_close(module.draft_logits(HIDDEN, PREVIOUS)[block, slot], expected)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_candidates_are_the_likeliest_base_tokens_and_keep_their_logits(kind):
    free, bound = drafter(with_head(kind)), drafter(replace(with_head(kind), candidates=5))
    base, logits = free.base_logits(HIDDEN), bound.draft_logits(HIDDEN, PREVIOUS)
    likeliest = torch.zeros_like(base, dtype=torch.bool).scatter(-1, base.topk(5).indices, True)
    assert torch.equal(logits.isfinite(), likeliest)
    torch.testing.assert_close(logits[likeliest], free.draft_logits(HIDDEN, PREVIOUS)[likeliest])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_all_tokens_as_candidates_are_no_restriction(kind):
    free, bound = drafter(with_head(kind)), drafter(replace(with_head(kind), candidates=CONFIG.vocab_size))
    torch.testing.assert_close(bound.draft_logits(HIDDEN, PREVIOUS), free.draft_logits(HIDDEN, PREVIOUS))
