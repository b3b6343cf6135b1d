"""The loss over candidates, against a plain reading of it."""

from dataclasses import replace

import pytest
import torch

from dspark.core.losses import LossCoefficients
from dspark.drafters.config import HeadKind
from dspark.drafters.dspark import DSpark
from dspark.errors import ConfigError
from dspark.training.batches import Batch, make_batch
from dspark.training.candidate_loss import candidate_loss
from dspark.training.forced_loss import Objective, forced_loss
from dspark.training.teacher import Teacher
from tests.training.tiny import TinyTarget, tiny_answers, tiny_drafter

COEFFICIENTS = LossCoefficients(0.3, 0.9, 0.2, 4.0, 0.4)


def drafter_with(candidates: int, **changes: object) -> DSpark:
    plain = tiny_drafter(draft_vocab_size=20)
    config = replace(plain.config, candidates=candidates, **changes)
    module = DSpark(config, plain.embedding, plain.head, plain.draft_token_ids)
    module.initialize(torch.Generator().manual_seed(5), std=0.4)
    return module


def batch_for(module: DSpark) -> Batch:
    answers = tiny_answers(3)
    records = Teacher(TinyTarget(), module.config.target_layer_ids, top_k=6).records(answers)
    index = torch.full((module.config.vocab_size,), -1).scatter(0, module.draft_token_ids, torch.arange(20))
    return make_batch(answers, records, 5, 3, index, seed=1)


def literal(module: DSpark, batch: Batch) -> tuple[list[float], list[float], list[float]]:
    """Cross-entropy, overlap and base cross-entropy of every slot, token by token."""
    hidden = module.forced_states(batch.features, batch.token_ids, batch.anchors, batch.previous, batch.lengths)
    unary = module.base_logits(hidden)[batch.supervised]
    free = DSpark(replace(module.config, candidates=None), module.embedding, module.head, module.draft_token_ids)
    free.load_state_dict(module.state_dict())
    full = free.draft_logits(hidden, batch.previous)[batch.supervised]
    rows: tuple[list[float], list[float], list[float]] = ([], [], [])
    for slot, (u, f) in enumerate(zip(unary, full, strict=True)):
        p_t: dict[int, float] = {}
        for token, p in zip(batch.teacher.ids[slot].tolist(), batch.teacher.probabilities[slot].tolist(), strict=True):
            p_t[token] = p_t.get(token, 0.0) + p
        candidates = u.topk(module.config.candidates).indices.tolist()
        favourite = int(batch.teacher.ids[slot, 0])
        taught = candidates if favourite in candidates else [*candidates, favourite]
        log_q = dict(zip(taught, f[taught].log_softmax(-1), strict=True))
        q = dict(zip(candidates, f[candidates].softmax(-1), strict=True))
        injected = {favourite: float(batch.teacher.probabilities[slot, 0])} if favourite not in candidates else {}
        p_taught = {token: p_t.get(token, 0.0) for token in candidates} | injected
        rows[0].append(-sum(p * log_q[token] for token, p in p_taught.items()))
        rows[1].append(sum(min(p_t.get(token, 0.0), float(q[token])) for token in candidates))
        rows[2].append(-sum(p * u.log_softmax(-1)[token] for token, p in p_t.items()))
    return rows


@pytest.mark.parametrize("kind", list(HeadKind))
@pytest.mark.parametrize("chunk", [None, 7])
def test_the_terms_are_those_of_the_drawn_law(kind: HeadKind, chunk: int | None) -> None:
    module = drafter_with(4, markov_head_type=kind)
    batch = batch_for(module)
    with torch.no_grad():
        terms = candidate_loss(module, batch, Objective(COEFFICIENTS, chunk), greedy=True)
        cross_entropy, overlap, of_base = (torch.tensor(row) for row in literal(module, batch))
        hidden = module.forced_states(batch.features, batch.token_ids, batch.anchors, batch.previous, batch.lengths)
        favourites = module.draft_logits(hidden, batch.previous)[batch.supervised].argmax(-1)
    w = torch.exp(-batch.slots / 4.0)
    w = w / w.sum()
    torch.testing.assert_close(terms.acceptance, overlap, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(terms.cross_entropy, (w * cross_entropy).sum(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(terms.total_variation, (w * 2 * (1 - overlap)).sum(), atol=1e-5, rtol=1e-4)
    rest = 0.3 * terms.cross_entropy + 0.9 * terms.total_variation + 0.2 * terms.confidence
    torch.testing.assert_close(terms.total, rest + 0.4 * (w * of_base).sum(), atol=1e-5, rtol=1e-4)
    met = (favourites == batch.teacher.ids[:, 0]) & (batch.teacher.probabilities[:, 0] > 0)
    assert terms.agreement.tolist() == met.float().tolist()


def test_with_every_token_a_candidate_it_is_the_loss_of_the_free_head() -> None:
    module = drafter_with(20)
    free = DSpark(replace(module.config, candidates=None), module.embedding, module.head, module.draft_token_ids)
    free.load_state_dict(module.state_dict())
    coefficients, batch = replace(COEFFICIENTS, base_cross_entropy=0.0), batch_for(module)
    found = candidate_loss(module, batch, Objective(coefficients))
    expected = forced_loss(free, batch, Objective(coefficients))
    torch.testing.assert_close(found.total, expected.total, atol=1e-5, rtol=1e-5)
    for terms in (found, expected):
        terms.total.backward()
    for (name, ours), theirs in zip(module.named_parameters(), free.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-3, msg=name)


def test_a_missed_favourite_teaches_but_is_not_accepted() -> None:
    """Candidates are chosen so badly that no teacher token is one of them."""
    module = drafter_with(2)
    batch = batch_for(module)
    terms = candidate_loss(
        module, batch, Objective(replace(COEFFICIENTS, l1=0.0, confidence=0.0, base_cross_entropy=0))
    )
    unary = module.base_logits(
        module.forced_states(batch.features, batch.token_ids, batch.anchors, batch.previous, batch.lengths)
    )
    hit = (unary[batch.supervised].topk(2).indices[:, :, None] == batch.teacher.ids[:, None, :]).any((1, 2))
    assert not terms.acceptance[~hit].any()
    assert (~hit).any()
    terms.total.backward()
    rows = module.markov_head.markov_w2.weight.grad.abs().sum(-1) > 0
    missed = ~hit & (batch.teacher.probabilities[:, 0] > 0)
    assert rows[batch.teacher.ids[missed, 0]].all()


def test_slots_and_gradients_are_finite_in_bfloat16() -> None:
    module = drafter_with(4, markov_head_type=HeadKind.SELECTOR)
    terms = candidate_loss(module, batch_for(module), Objective(COEFFICIENTS, precision=torch.bfloat16))
    terms.total.backward()
    assert all(torch.isfinite(p.grad).all() and p.grad.any() for p in module.parameters())


def test_a_base_loss_without_candidates_is_refused() -> None:
    module = tiny_drafter(draft_vocab_size=20)
    with pytest.raises(ConfigError, match="base_cross_entropy"):
        forced_loss(module, batch_for(module), Objective(COEFFICIENTS))
    with pytest.raises(ConfigError, match="without candidates"):
        candidate_loss(module, batch_for(module), Objective(COEFFICIENTS))
