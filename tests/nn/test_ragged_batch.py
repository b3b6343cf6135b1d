"""The metadata of a ragged forward against what it stands for, and attention on it against each request's own."""

import pytest
import torch
from torch.nn import functional as F

from dspark.errors import CapacityError
from dspark.nn.device import CPU
from dspark.nn.paged_attention import CAUSAL, WHOLE, PagedLayers, causal, flash_attention, gathered_attention
from dspark.nn.pages import PAGE, PagedCache, PagePool, PageTable
from dspark.nn.ragged_batch import RaggedBatch, Room

PAGES = 24
LENGTHS, COUNTS = (0, 33, 5, 16, 47), (40, 6, 0, 1, 3)
"""A prompt's chunk over three pages, a verification, nobody, a lone anchor, a verification that opens a page."""


def caches_of(lengths, pool):
    order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(3)).tolist()
    caches = []
    for length in lengths:
        table = PageTable(6)
        table.extend([order.pop() for _ in range(4)])
        caches.append(PagedCache(pool, table))
        caches[-1].length = length
    return caches


def tensors(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_every_row_has_its_position_and_its_cell():
    caches = caches_of(LENGTHS, PagePool(PAGES, 1, 1, 8))
    batch = RaggedBatch.of(caches, COUNTS, CPU)
    expected = [
        (position, cache.table.ids[position // PAGE] * PAGE + position % PAGE)
        for cache, length, count in zip(caches, LENGTHS, COUNTS, strict=True)
        for position in range(length, length + count)
    ]
    assert list(zip(batch.positions.tolist(), batch.cells.tolist(), strict=True)) == expected
    assert batch.starts.tolist() == [0, 40, 46, 46, 47, 50]
    assert batch.used.tolist() == [40, 39, 5, 17, 50]
    assert batch.owners().tolist() == [0] * 40 + [1] * 6 + [3] + [4] * 3
    assert (batch.most_rows, batch.most_used) == (40, 50)
    assert batch.tables.shape == (5, 4)
    assert batch.tables[4].tolist() == caches[4].table.ids[:4].tolist()


def test_all_of_it_travels_as_one_tensor():
    batch = RaggedBatch.of(caches_of(LENGTHS, PagePool(PAGES, 1, 1, 8)), COUNTS, CPU)
    own = batch.data.untyped_storage().data_ptr()
    parts = (batch.starts, batch.used, batch.tables, batch.positions, batch.cells)
    assert {part.untyped_storage().data_ptr() for part in parts} == {own}
    assert {part.dtype for part in parts} == {torch.int32}
    assert sum(part.numel() for part in parts) == batch.data.numel()


def test_room_fixes_shapes_and_bounds():
    pool = PagePool(PAGES, 1, 1, 8)
    small, large = caches_of((3,), pool), caches_of(LENGTHS, pool)
    room = Room(requests=8, pages=5)
    batches = [RaggedBatch.of(small, [50], CPU, room), RaggedBatch.of(large, COUNTS, CPU, room)]
    one, other = [
        (b.data.shape, b.starts.shape, b.tables.shape, b.positions.shape, b.most_rows, b.most_used) for b in batches
    ]
    assert one == other
    assert batches[0].starts.tolist() == [0] + [50] * 8
    assert batches[0].used.tolist() == [53] + [0] * 7
    with pytest.raises(CapacityError, match="5 requests of up to 4 pages do not fit Room"):
        RaggedBatch.of(large, COUNTS, CPU, Room(4, 5))


def expected_rows(query, keys, values, past, window, scale):
    """Softmax attention written out for one request: rows stand at positions past, past + 1, ..."""
    before, behind = window
    heads, groups = query.shape[1], query.shape[1] // keys.shape[1]
    outputs = []
    for row, q in enumerate(query):
        at = past + row
        first = 0 if before < 0 else max(at - before, 0)
        last = len(keys) if behind < 0 else min(at + behind + 1, len(keys))
        own = [
            (q[head] @ keys[first:last, head // groups].T * scale).softmax(-1) @ values[first:last, head // groups]
            for head in range(heads)
        ]
        outputs.append(torch.stack(own))
    return torch.stack(outputs)


def filled(heads, kv_heads, lengths, counts, dtype=torch.float32):
    """A pool whose pages hold keys and values of every request, the rows' own written by `PagedLayers`."""
    width, pool = 8, PagePool(PAGES, 2, kv_heads, 8, dtype=dtype)
    pool.data.copy_(tensors(*pool.data.shape, seed=1))  # whatever stands elsewhere must not be seen
    caches = caches_of(lengths, pool)
    stored = [tensors(2, length + count, kv_heads, width, seed=10 + i)
              for i, (length, count) in enumerate(zip(lengths, counts, strict=True))]  # fmt: skip
    for cache, (keys, values) in zip(caches, stored, strict=True):
        cache.write(1, 0, torch.cat((keys, values), dim=1)[: cache.length])
    batch = RaggedBatch.of(caches, counts, CPU)
    layers = PagedLayers(pool, batch, gathered_attention)
    layers.write(1, torch.cat([torch.cat((k, v), 1)[len(k) - n :] for (k, v), n in zip(stored, counts, strict=True)]))
    query = tensors(sum(counts), heads, width, seed=5)
    return layers, query, stored


@pytest.mark.parametrize("window", [CAUSAL, causal(4), causal(20), WHOLE], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (3, 1), (2, 2)])
def test_plain_attention_is_each_requests_own(heads, kv_heads, window):
    layers, query, stored = filled(heads, kv_heads, LENGTHS, COUNTS)
    found = layers.attend(1, query, window, 0.3)
    expected = [
        expected_rows(q, keys, values, length, window, 0.3)
        for q, (keys, values), length in zip(query.split(COUNTS), stored, LENGTHS, strict=True)
        if len(q)
    ]
    torch.testing.assert_close(found, torch.cat(expected), atol=1e-5, rtol=1e-5)


def kernel_by_its_manual(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale, window_size, enable_gqa, seqused_k, block_table,
    num_splits,
):  # fmt: skip
    """What torch 2.13 documents of `varlen_attn` on block tables, request by request."""
    assert (enable_gqa, num_splits, cu_seq_k) == (True, 1, None)
    assert {t.dtype for t in (cu_seq_q, seqused_k, block_table)} == {torch.int32}
    assert key.stride(-1) == value.stride(-1) == query.stride(-1) == 1
    assert int(cu_seq_q.diff().max()) <= max_q
    assert int(seqused_k.max()) <= max_k <= block_table.shape[1] * key.shape[1]
    outputs = []
    for request, rows in enumerate(query.split(cu_seq_q.diff().tolist())):
        used = int(seqused_k[request])
        keys, values = (pages[block_table[request].long()].flatten(0, 1)[:used] for pages in (key, value))
        if len(rows):
            outputs.append(expected_rows(rows, keys, values, used - len(rows), window_size, scale))
    return torch.cat(outputs)


@pytest.mark.parametrize("window", [CAUSAL, causal(4), WHOLE], ids=str)
def test_the_kernel_is_called_as_its_manual_says(monkeypatch, window):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel_by_its_manual)
    layers, query, _ = filled(4, 2, LENGTHS, COUNTS)
    expected = layers.attend(1, query, window, 0.3)
    found = flash_attention(query, *layers._pool.cells(1), layers._batch, window, 0.3)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_the_kernel_takes_our_arguments_as_far_as_shapes_go():
    """torch's own fake of the operator runs without a GPU."""
    meta = torch.device("meta")
    pool = PagePool(PAGES, 2, 2, 8, dtype=torch.bfloat16, device=meta)
    batch = RaggedBatch.of(caches_of(LENGTHS, pool), COUNTS, meta)
    query = torch.empty(sum(COUNTS), 4, 8, dtype=torch.bfloat16, device=meta)
    assert flash_attention(query, *pool.cells(1), batch, CAUSAL, 1.0).shape == query.shape


def test_rows_do_not_see_their_neighbours():
    """Padding to the longest request, here the second, may change rounding, never what is seen."""
    layers, query, _ = filled(4, 2, (20, 20), (3, 12))
    alone, own, _ = filled(4, 2, (20,), (3,))
    own.copy_(query[:3])
    torch.testing.assert_close(layers.attend(1, query, CAUSAL, 0.3)[:3], alone.attend(1, own, CAUSAL, 0.3))


def test_the_oracle_above_is_torchs_attention():
    q, k, v = (tensors(5, 2, 8, seed=seed) for seed in range(3))
    expected = F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (q, k, v)), is_causal=True, scale=0.3)
    torch.testing.assert_close(expected_rows(q, k, v, 0, CAUSAL, 0.3), expected.transpose(0, 1))
