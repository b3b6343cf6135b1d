"""Starts copy what they say they copy, and the bigram start predicts the next token better than nothing."""

from dataclasses import replace

import torch

from dspark.drafters.dspark import DSpark
from dspark.drafters.ingredients import Experts
from dspark.training.bigram import bigram_factors, log_ratio_table
from dspark.training.warm_start import draft_vocabulary, start_from_bigrams, start_from_layers
from tests.training.tiny import LAYERS, VOCAB, WIDTH, TinyTarget, tiny_answers, tiny_drafter


def test_layers_are_the_targets_last_and_context_is_its_last_tap() -> None:
    target, drafter = TinyTarget(), tiny_drafter()
    start_from_layers(drafter, target, torch.randn(20, WIDTH, generator=torch.Generator().manual_seed(0)))
    weights = target.layer_weights(LAYERS - 1)
    layer = drafter.layers[0]
    assert layer.mlp.up_proj.weight.equal(weights["mlp.up_proj.weight"])
    assert layer.input_layernorm.weight.equal(weights["input_layernorm.weight"])
    features = torch.randn(3, 2 * WIDTH, generator=torch.Generator().manual_seed(1))
    assert torch.equal(drafter.fc(features), features[:, WIDTH:])


def test_the_shared_expert_starts_as_the_targets_mlp() -> None:
    target, plain = TinyTarget(), tiny_drafter()
    config = replace(plain.config, experts=Experts(routed=3, active=1, width=5))
    drafter = DSpark(config, plain.embedding, plain.head)
    drafter.initialize(torch.Generator().manual_seed(0))
    features = torch.randn(12, 2 * WIDTH, generator=torch.Generator().manual_seed(1))
    for module in (plain, drafter):
        start_from_layers(module, target, features[:, WIDTH:])
    tokens, anchors = torch.arange(12), torch.tensor([3, 8])
    states = [module.training_states(features, tokens, anchors) for module in (drafter, plain)]
    torch.testing.assert_close(*states)


def test_missing_query_norms_get_the_scale_of_the_layers_own_queries() -> None:
    target, drafter = TinyTarget(), tiny_drafter()
    last_tap = torch.randn(50, WIDTH, generator=torch.Generator().manual_seed(2))
    start_from_layers(drafter, target, last_tap)
    attention = drafter.layers[0].self_attn
    normed = drafter.layers[0].input_layernorm(last_tap)
    raw = attention.q_proj(normed).unflatten(-1, (-1, 8))
    scaled = attention.q_norm(raw)
    torch.testing.assert_close(scaled.square().mean(), raw.square().mean(), rtol=1e-4, atol=0)


def test_draft_vocabulary_is_the_most_frequent_tokens_in_id_order() -> None:
    answers = tiny_answers()
    kept = draft_vocabulary(answers, 6).tolist()
    counts = torch.bincount(torch.tensor([t for a in answers for t in a.response_ids]), minlength=VOCAB)
    assert kept == sorted(kept)
    assert min(counts[kept]) >= max(counts[[t for t in range(VOCAB) if t not in kept]])


def test_draft_vocabulary_is_filled_up_when_answers_hold_too_few_tokens() -> None:
    assert len(set(draft_vocabulary(tiny_answers(1), VOCAB).tolist())) == VOCAB


def test_log_ratios_of_a_hand_made_corpus() -> None:
    """After token 0 always 1, after 1 always 0. With s pseudo-counts of p the ratio is (c + s p) / ((n + s) p)."""
    pairs = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]])
    both = torch.tensor([0, 1])
    table = log_ratio_table(pairs, both, both, 2, shrinkage=2.0).exp()
    torch.testing.assert_close(table, torch.tensor([[0.5, 1.5], [1.5, 0.5]]))


def test_tokens_never_seen_before_get_no_preference() -> None:
    both = torch.tensor([0, 1, 2])
    table = log_ratio_table(torch.tensor([[0, 1], [1, 0]]), both, both, 3, shrinkage=5.0)
    torch.testing.assert_close(table[2], torch.zeros(3), atol=1e-6, rtol=0)


def test_full_rank_factors_reproduce_the_table() -> None:
    sequences = [answer.response_ids for answer in tiny_answers()]
    kept = torch.arange(3, VOCAB)
    w1, w2 = bigram_factors(sequences, kept, VOCAB, rank=len(kept))
    pairs = torch.cat([torch.tensor((s[:-1], s[1:])).T for s in sequences])
    table = log_ratio_table(pairs, kept, kept, VOCAB, 20.0)
    torch.testing.assert_close(w1[kept] @ w2.T, table, atol=1e-4, rtol=0)
    assert not w1[:3].any()


def test_a_drafter_without_sequential_head_is_left_alone() -> None:
    drafter = tiny_drafter(rank=0)
    before = {k: v.clone() for k, v in drafter.state_dict().items()}
    start_from_bigrams(drafter, tiny_answers(), 0)
    assert all(value.equal(before[name]) for name, value in drafter.state_dict().items())
