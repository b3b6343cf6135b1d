"""The pieces of both rules: thresholds, accepted counts, corrections, and their edges."""

import itertools
from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from dspark.core.block_verification import BlockVerification, prefix_weights
from dspark.core.rejection import (
    RejectionRule,
    TokenRejection,
    likelihood_ratios,
    residual,
    verify,
    verify_greedy,
)
from dspark.core.sampling import draw
from dspark.errors import SamplingError
from dspark.types import Verdict

ALMOST_ONE = 1 - 2**-53
RULES: list[RejectionRule] = [TokenRejection(), BlockVerification()]
both_rules = pytest.mark.parametrize("rule", RULES, ids=["token", "block"])

V = 4
law_rows = st.lists(st.integers(0, 5), min_size=V, max_size=V).filter(any)


def laws(rows: list[list[int]]) -> Tensor:
    weights = torch.tensor(rows, dtype=torch.float64).reshape(len(rows), V)
    return weights / weights.sum(dim=-1, keepdim=True)


def blocks(max_drafts: int = 3) -> st.SearchStrategy[tuple[Tensor, Tensor, list[int]]]:
    """p [k + 1, V], q [k, V] with many zeros, and drafts that q can draw."""

    @st.composite
    def build(pick: st.DrawFn) -> tuple[Tensor, Tensor, list[int]]:
        k = pick(st.integers(0, max_drafts))
        p = laws(pick(st.lists(law_rows, min_size=k + 1, max_size=k + 1)))
        q = laws(pick(st.lists(law_rows, min_size=k, max_size=k)))
        drafts = [pick(st.sampled_from([x for x in range(V) if row[x] > 0])) for row in q]
        return p, q, drafts

    return build()


@settings(max_examples=50)
@given(law_rows, law_rows)
def test_one_draft_reproduces_the_target_exactly(p_row: list[int], q_row: list[int]) -> None:
    p, q = laws([p_row, [1] * V]), laws([q_row])
    for rule in RULES:
        output = torch.zeros(V, dtype=torch.float64)
        for draft in range(V):
            if q[0, draft] > 0:
                (passes,) = rule.thresholds(p, q, [draft])
                output[draft] += q[0, draft] * passes
                output += q[0, draft] * (1 - passes) * rule.correction(p, q, [draft], 0)
        torch.testing.assert_close(output, p[0], rtol=0, atol=1e-15)


def test_numbers_of_the_papers_appendix_a() -> None:
    p = torch.tensor([[0.7, 0.3], [0.5, 0.5]], dtype=torch.float64)
    q = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    assert TokenRejection().thresholds(p, q, [0]) == [1.0]
    assert TokenRejection().thresholds(p, q, [1]) == pytest.approx([0.6])
    assert residual(p[0], q[0]).tolist() == [1.0, 0.0]


@both_rules
@settings(max_examples=40)
@given(thresholds=st.lists(st.floats(0, 1), max_size=4))
def test_law_of_accepted_drafts_follows_from_independent_passes(rule: RejectionRule, thresholds: list[float]) -> None:
    law = [0.0] * (len(thresholds) + 1)
    for passes in itertools.product((False, True), repeat=len(thresholds)):
        chance = prod(t if passed else 1 - t for t, passed in zip(thresholds, passes, strict=True))
        law[rule.accepted(passes)] += chance
    assert rule.accepted_law(thresholds) == pytest.approx(law, abs=1e-12)


@both_rules
@settings(max_examples=40)
@given(block=blocks(), uniform=st.floats(0, ALMOST_ONE))
def test_draft_equal_to_target_always_survives(
    rule: RejectionRule, block: tuple[Tensor, Tensor, list[int]], uniform: float
) -> None:
    _, q, drafts = block
    p = torch.cat((q, laws([[0, 1, 0, 0]])))
    k = len(drafts)
    assert verify(rule, p, q, drafts, [ALMOST_ONE] * k, [uniform] * (k + 1)) == Verdict(k, 1)


@both_rules
@settings(max_examples=40)
@given(block=blocks(), uniform=st.sampled_from([0.0, 0.3, ALMOST_ONE]))
def test_nothing_impossible_is_ever_emitted(
    rule: RejectionRule, block: tuple[Tensor, Tensor, list[int]], uniform: float
) -> None:
    p, q, drafts = block
    verdict = verify(rule, p, q, drafts, [uniform] * len(drafts), [uniform] * len(p))
    emitted = [*drafts[: verdict.accepted], verdict.token]
    assert all(p[i, token] > 0 for i, token in enumerate(emitted))


@both_rules
def test_impossible_draft_is_rejected_at_the_luckiest_uniform(rule: RejectionRule) -> None:
    p, q = laws([[0, 1, 1, 0], [1, 1, 1, 1]]), laws([[1, 1, 0, 0]])
    assert verify(rule, p, q, [0], [0.0], [0.0, 0.0]) == Verdict(0, 2)


@both_rules
def test_draft_that_q_could_not_draw_is_rejected(rule: RejectionRule) -> None:
    # 0 / 0 and p / 0: a drafter that claims a token it did not draw gains nothing.
    p, q = laws([[0, 1, 1, 2], [1, 1, 1, 1]]), laws([[0, 1, 1, 0]])
    assert likelihood_ratios(p, q, [0]) == likelihood_ratios(p, q, [3]) == [0.0]
    assert verify(rule, p, q, [3], [0.0], [0.0, 0.0]) == Verdict(0, 3)


@both_rules
def test_masked_draft_row_yields_the_target_law(rule: RejectionRule) -> None:
    p, q = laws([[1, 2, 3, 4], [1, 1, 1, 1]]), torch.zeros(1, V, dtype=torch.float64)
    assert rule.thresholds(p, q, [0]) == [0.0]
    torch.testing.assert_close(rule.correction(p, q, [0], 0), p[0])


@both_rules
def test_masked_target_row_matters_only_when_reached(rule: RejectionRule) -> None:
    q = laws([[1, 1, 0, 0]])
    dead_end = torch.zeros(1, V, dtype=torch.float64)
    after_impossible = torch.cat((laws([[0, 1, 1, 0]]), dead_end))
    assert verify(rule, after_impossible, q, [0], [0.0], [0.5, 0.5]) == Verdict(0, 2)
    with pytest.raises(SamplingError, match="every token is masked"):
        verify(rule, torch.cat((q, dead_end)), q, [0], [0.0], [0.5, 0.5])


@both_rules
def test_without_drafts_the_target_speaks(rule: RejectionRule) -> None:
    p = laws([[1, 1, 1, 1]])
    assert verify(rule, p, p[:0], [], [], [0.6]) == Verdict(0, 2)


@both_rules
@settings(max_examples=40)
@given(block=blocks(), data=st.data())
def test_rows_beyond_a_verified_prefix_are_not_read(
    rule: RejectionRule, block: tuple[Tensor, Tensor, list[int]], data: st.DataObject
) -> None:
    p, q, drafts = block
    ell = data.draw(st.integers(0, len(drafts)))
    accept, recover = [0.4] * ell, [0.4] * (ell + 1)
    poisoned = q.clone()
    poisoned[ell:] = torch.nan
    expected = verify(rule, p[: ell + 1], q[:ell], drafts[:ell], accept, recover)
    assert verify(rule, p[: ell + 1], poisoned, drafts[:ell], accept, recover) == expected


def test_each_uniform_decides_its_own_position() -> None:
    p = torch.full((4, V), 0.25, dtype=torch.float64)
    q = laws([[1, 0, 0, 0]] * 3)
    passes = TokenRejection().thresholds(p, q, [0, 0, 0])
    assert passes == [0.25] * 3
    accept, recover = [0.2, 0.25, 0.0], [0.0, 0.5, 0.9, 0.99]
    # The uniform equal to its threshold fails; the closing token uses the uniform of position 1.
    assert verify(TokenRejection(), p, q, [0, 0, 0], accept, recover) == Verdict(1, draw(residual(p[1], q[1]), 0.5))


@both_rules
@settings(max_examples=40)
@given(block=blocks())
def test_greedy_is_what_the_rule_does_to_one_hot_laws(
    rule: RejectionRule, block: tuple[Tensor, Tensor, list[int]]
) -> None:
    p, _, drafts = block
    best = p.argmax(dim=-1)
    one_hot = torch.eye(V, dtype=torch.float64)
    expected = verify_greedy(best.tolist(), drafts)
    for u in (0.0, ALMOST_ONE):
        sampled = verify(rule, one_hot[best], one_hot[drafts], drafts, [u] * len(drafts), [u] * len(p))
        assert sampled == expected


def test_greedy_on_masked_rows() -> None:
    assert verify_greedy([3, None], [2]) == Verdict(0, 3)
    with pytest.raises(SamplingError, match="every token is masked"):
        verify_greedy([3, None], [3])


def test_residual_without_mass_is_the_target() -> None:
    p = laws([[1, 2, 3, 4]])[0]
    assert torch.equal(residual(p, p), p)


def test_prefix_weights_recover_after_a_bad_start() -> None:
    p = torch.tensor([[0.2, 0.8], [0.9, 0.1], [0.5, 0.5]], dtype=torch.float64)
    q = torch.tensor([[0.8, 0.2], [0.3, 0.7]], dtype=torch.float64)
    assert prefix_weights(p, q, [0, 0]) == pytest.approx([1, 0.25, 0.75])
    assert prefix_weights(p, q, [1, 0]) == pytest.approx([1, 1, 1])
    # s_1 = max(0.25 * 0.9 - 0.3, 0) + max(0.25 * 0.1 - 0.7, 0) = 0: the first prefix never stops alone.
    assert BlockVerification().thresholds(p, q, [0, 0]) == pytest.approx([0, 0.75])


def test_weights_survive_ratios_beyond_the_range_of_floats() -> None:
    p = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]], dtype=torch.float64)
    q = torch.tensor([[1.0, 0.0], [5e-324, 1.0]], dtype=torch.float64)
    assert prefix_weights(p, q, [0, 0]) == [1, 0, 0]
    assert BlockVerification().thresholds(p, q, [0, 0]) == [0, 0]
