"""The mask definition, against a brute-force reading of its sentence."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.core.masks import BlockLayout
from dspark.errors import ConfigError


@st.composite
def layouts(draw):
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    anchors = sorted(draw(st.sets(st.integers(0, sum(lengths) - 1), max_size=8)))
    gamma, window = draw(st.integers(1, 4)), draw(st.none() | st.integers(1, 6))
    return BlockLayout.pack(torch.tensor(anchors, dtype=torch.long), lengths, gamma, window)


def sees(layout, documents, block, key):
    """The sentence: the window's context of the same document before the anchor, or a slot of the same block."""
    total, anchor = len(documents), int(layout.anchors[block])
    if key < total:
        near = layout.window is None or anchor - key <= layout.window
        return documents[key] == documents[anchor] and key < anchor and near
    return (key - total) // layout.gamma == block


@settings(max_examples=40)
@given(layouts())
def test_the_dense_mask_is_the_definition(layout):
    documents, queries = layout.documents().tolist(), len(layout.anchors) * layout.gamma
    keys = len(documents) + queries
    expected = [[sees(layout, documents, q // layout.gamma, k) for k in range(keys)] for q in range(queries)]
    assert layout.dense().tolist() == expected


@settings(max_examples=40)
@given(layouts(), st.integers(1, 4))
def test_tiles_cover_every_block_once_and_show_it_exactly_its_context(layout, size):
    rebuilt = torch.zeros_like(layout.context_visible())
    covered = []
    for tile in layout.tiles(size):
        assert tile.last - tile.first <= size
        rebuilt[tile.first : tile.last, tile.start : tile.stop] = tile.visible
        covered += range(tile.first, tile.last)
    assert covered == list(range(len(layout.anchors)))
    assert torch.equal(rebuilt, layout.context_visible())


def test_positions_restart_in_every_document_and_the_anchor_keeps_its_own():
    layout = BlockLayout.pack(torch.tensor([2, 4]), (3, 3), gamma=3)
    assert layout.positions().tolist() == [0, 1, 2, 0, 1, 2]
    assert layout.block_positions().tolist() == [[2, 3, 4], [1, 2, 3]]


@pytest.mark.parametrize("anchors", [[3, 1], [-1, 2], [2, 6]])
def test_unsorted_or_outlying_anchors_are_refused(anchors):
    with pytest.raises(ConfigError, match="anchors must"):
        BlockLayout.pack(torch.tensor(anchors), (6,), gamma=2)
