"""FlexAttention under the block mask, against plain attention under the dense one; and what no block may see."""

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from dspark.core.masks import BlockLayout
from dspark.drafters.attention import attend_tiles
from dspark.drafters.block_attention import attend_flex, block_attention, flex_mask
from tests.drafters.tiny import tensors

LAYOUT = BlockLayout.pack(torch.tensor([0, 3, 6, 8, 9, 13]), (7, 9), gamma=3)
"""Two documents of 7 and 9 tokens, three blocks in each; anchor 0 and anchor 8 have little or no context."""


def inputs(layout=LAYOUT):
    blocks, context = (len(layout.anchors), layout.gamma), sum(layout.lengths)
    k, v = tensors(2, *blocks, 2, 8, seed=2)
    context_k, context_v = tensors(2, context, 2, 8, seed=3)
    return tensors(*blocks, 4, 8, seed=1), k, v, context_k, context_v


def dense(layout, q, k, v, context_k, context_v):
    keys = torch.cat((context_k, k.flatten(0, 1))).transpose(0, 1)
    values = torch.cat((context_v, v.flatten(0, 1))).transpose(0, 1)
    out = F.scaled_dot_product_attention(
        q.flatten(0, 1).transpose(0, 1)[None], keys[None], values[None], layout.dense(), enable_gqa=True
    )
    return out[0].transpose(0, 1).reshape(q.shape)


def flex(layout, q, k, v, context_k, context_v, block=16):
    with warnings.catch_warnings():  # uncompiled on purpose: compiling takes minutes, the mask is the same
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return attend_flex(flex_mask(layout, block), (context_k, context_v))(q, k, v)


def tiled(layout, q, k, v, context_k, context_v):
    return attend_tiles(layout, tuple(layout.tiles(2)), (context_k, context_v))(q, k, v)


KERNELS = pytest.mark.parametrize("kernel", [flex, tiled])


@pytest.mark.parametrize("block", [16, 128])
def test_flex_attention_equals_the_dense_mask(block):
    torch.testing.assert_close(flex(LAYOUT, *inputs(), block), dense(LAYOUT, *inputs()), atol=1e-6, rtol=1e-5)


def test_flex_attention_keeps_the_values_type_under_autocast():
    q, k, v, context_k, context_v = inputs()
    out = flex(LAYOUT, q, k, v.bfloat16(), context_k, context_v.bfloat16())
    assert out.dtype is torch.bfloat16
    torch.testing.assert_close(out.float(), dense(LAYOUT, *inputs()), atol=3e-2, rtol=3e-2)


@st.composite
def layouts(draw):
    lengths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    anchors = sorted(draw(st.sets(st.integers(0, sum(lengths) - 1), min_size=1, max_size=8)))
    return BlockLayout.pack(torch.tensor(anchors), lengths, draw(st.integers(1, 4)))


@settings(max_examples=15, deadline=None)
@given(layouts(), st.sampled_from([4, 16]))
def test_the_block_mask_skips_a_square_only_where_the_dense_mask_is_empty(layout, block):
    """And marks it as full only where it is. Squares over the edge count what lies inside."""
    mask = flex_mask(layout, block)
    rows, columns = mask.to_dense()[0, 0].shape
    padded = F.pad(layout.dense(), (0, columns * block, 0, rows * block))[: rows * block, : columns * block]
    squares = padded.view(rows, block, columns, block)
    assert mask.to_dense()[0, 0].bool().tolist() == squares.any(3).any(1).tolist()


@KERNELS
@pytest.mark.parametrize("position", range(16))
def test_a_context_token_reaches_only_later_blocks_of_its_document(kernel, position):
    """Exactly the blocks that should feel it do: a leak and a hole would both show."""
    q, k, v, context_k, context_v = inputs()
    before = kernel(LAYOUT, q, k, v, context_k, context_v)
    context_k[position] += 3.0
    context_v[position] += 3.0
    moved = (kernel(LAYOUT, q, k, v, context_k, context_v) != before).flatten(1).any(1)
    document = int(position >= 7)
    expected = [int(a >= 7) == document and position < a for a in LAYOUT.anchors.tolist()]
    assert moved.tolist() == expected


@KERNELS
@pytest.mark.parametrize("block", range(6))
@pytest.mark.parametrize("slot", range(3))
def test_a_slot_reaches_all_slots_of_its_own_block_and_no_other(kernel, block, slot):
    q, k, v, context_k, context_v = inputs()
    before = kernel(LAYOUT, q, k, v, context_k, context_v)
    k[block, slot] += 3.0
    v[block, slot] += 3.0
    moved = (kernel(LAYOUT, q, k, v, context_k, context_v) != before).flatten(2).any(2)
    assert moved.tolist() == [[b == block] * 3 for b in range(6)]


@KERNELS
def test_two_anchors_at_one_place_do_not_see_each_other(kernel):
    layout = BlockLayout.pack(torch.tensor([4, 4]), (7,), gamma=2)
    q, k, v, context_k, context_v = inputs(layout)
    before = kernel(layout, q, k, v, context_k, context_v)
    v[1] += 3.0
    after = kernel(layout, q, k, v, context_k, context_v)
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])


def test_a_cpu_trains_on_tiles():
    q, k, v, context_k, context_v = (tensor.requires_grad_() for tensor in inputs())
    out = block_attention(LAYOUT)((context_k, context_v))(q, k, v)
    torch.testing.assert_close(out, dense(LAYOUT, *inputs()), atol=1e-6, rtol=1e-5)
    out.sum().backward()
    assert context_v.grad is not None
