"""Where anchors may fall and what their slots are taught: the mask-shift table, boundaries and sampling."""

import pytest
import torch

from dspark.core.anchors import anchor_candidates, block_labels, sample_anchors, sample_packed_anchors
from dspark.core.masks import BlockLayout
from dspark.errors import ConfigError


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("loss_mask", "candidates"),
    [
        ([0, 0, 1, 1, 1, 0], [2, 3]),  # the first answer token may be an anchor, the last has no label
        ([0, 0, 1, 1, 1], [2, 3]),  # truncated: the last token has nothing behind it
        ([1, 1, 0, 1, 1, 1], [0, 3, 4]),  # two turns: no anchor predicts across the gap
        ([0, 1, 0, 1, 0], []),  # single supervised tokens
        ([0, 0, 0], []),
        ([1], []),
    ],
)
def test_candidates_are_supervised_tokens_with_a_supervised_successor(loss_mask, candidates):
    assert anchor_candidates(torch.tensor(loss_mask)).tolist() == candidates


@pytest.mark.parametrize(
    ("anchor", "previous", "targets", "supervised"),
    [
        (2, [12, 13, 14], [13, 14, 15], [True, True, True]),  # inside the answer
        (4, [14, 15, 16], [15, 16, 17], [True, False, False]),  # its last label, then the next turn's header
        (5, [15, 16, 17], [16, 17, 18], [False, False, False]),  # a supervised token later on does not revive it
        (7, [17, 18, 19], [18, 19, 19], [True, True, False]),  # truncated document: labels end with the tokens
    ],
)
def test_slot_k_is_taught_the_token_k_plus_one_after_the_anchor(anchor, previous, targets, supervised):
    tokens = torch.arange(10, 20)
    loss_mask = torch.tensor([0, 0, 1, 1, 1, 1, 0, 1, 1, 1])
    labels = block_labels(tokens, loss_mask, BlockLayout.pack(torch.tensor([anchor]), (10,), gamma=3))
    assert labels.previous.tolist() == [previous]
    assert labels.targets.tolist() == [targets]
    assert labels.supervised.tolist() == [supervised]


def test_labels_never_come_from_the_next_document():
    layout = BlockLayout.pack(torch.tensor([2, 3]), (4, 4), gamma=3)
    labels = block_labels(torch.arange(8), torch.ones(8), layout)
    assert labels.supervised.tolist() == [[True, False, False], [False, False, False]]


def test_sampling_is_sorted_distinct_bounded_and_reproducible():
    mask = torch.ones(50)
    first, again = (sample_anchors(mask, 20, seeded(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert first.tolist() == sorted(set(first.tolist()))
    assert len(first) == 20
    assert sample_anchors(mask, 500, seeded()).tolist() == list(range(49))


def test_sampling_is_uniform():
    """Chi-square with 9 degrees of freedom at the 0.1 % level: 27.88."""
    generator, counts, draws = seeded(1), torch.zeros(10), 1000
    for _ in range(draws):
        counts[sample_anchors(torch.ones(11), 3, generator)] += 1
    expected = draws * 3 / 10
    # Draws without replacement are negatively correlated, so the statistic is below chi-square: the test is sharp
    # against bias and conservative otherwise.
    assert float(((counts - expected) ** 2 / expected).sum()) < 27.88


def test_packed_sampling_gives_every_document_its_share_and_none_on_a_boundary():
    lengths, mask = (5, 40, 5), torch.ones(50)
    anchors = sample_packed_anchors(mask, lengths, 4, seeded())
    documents = [sum(a >= start for start in (5, 45)) for a in anchors.tolist()]
    assert documents == [0] * 4 + [1] * 4 + [2] * 4
    assert not {4, 44, 49} & set(anchors.tolist())


def test_a_count_below_one_is_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        sample_anchors(torch.ones(5), 0, seeded())
