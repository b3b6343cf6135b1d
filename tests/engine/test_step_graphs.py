"""Pieces of a step replayed on inputs of their own: what a CUDA graph does, on the CPU by running the piece again."""

import pytest
import torch

from dspark.engine.step_graphs import StepGraphs, greedy_drafting, verification
from dspark.nn.device import CPU
from dspark.nn.paged_attention import gathered_attention
from dspark.nn.ragged_batch import RaggedBatch, Room
from dspark.targets.native import NativeTarget
from tests.evaluation.tiny import TAPS, drafter, native
from tests.targets.paged import paged_caches

ROOM, ROWS, GAMMA = Room(requests=5, pages=3), 8, 3
KEPT = torch.tensor([9, 1, 4, 7, 3, 0])


class Reruns:
    """Captures by keeping the piece, which it runs again into the same tensors."""

    def __init__(self):
        self.captured = self.replayed = 0

    def __call__(self, work):
        self.captured += 1
        outputs = work()

        def replay():
            self.replayed += 1
            for own, new in zip(outputs, work(), strict=True):
                own.copy_(new)

        return outputs, replay


@pytest.fixture
def target():
    plain = native(11)
    return NativeTarget(plain.config, plain.info, plain._weights, plain.kernel, attention=gathered_attention)


def ids(count, seed):
    return torch.randint(11, (count,), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("counts", [[(5, 3), (1, 1)], [(2, 2, 2, 2), (1, 1, 1, 1)]])
def test_a_replayed_verification_is_the_forward(target, counts):
    """Two steps of one tier: the second replays what the first captured, with other requests and other texts."""
    capture = Reruns()
    graphs = StepGraphs(capture)
    caches, expected = (paged_caches(target, [20] * 5) for _ in range(2))
    for step, own in enumerate(counts):
        real, those = sum(own), slice(step, step + len(own))
        tokens, data = torch.zeros(ROWS, dtype=torch.long), list(own)
        tokens[:real] = ids(real, step)
        spare = ([*caches[those], caches[4]], [*data, ROWS - real]) if real < ROWS else (caches[those], data)
        batch = RaggedBatch.of(*spare, CPU, ROOM)
        work = verification(target, caches[0].pool, batch, TAPS)
        logits, features = graphs.run(("verify", ROWS), work, tokens, batch.data)
        wanted = target.forward_ragged(tokens[:real], expected[those], own, TAPS)
        torch.testing.assert_close(logits[:real], target.logits(wanted.last_hidden), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(features[:real], wanted.features, atol=1e-5, rtol=1e-5)
        for cache, count in zip(caches[those], own, strict=True):
            cache.length += count
    assert (capture.captured, capture.replayed) == (1, 2)


@pytest.mark.parametrize("kept", [None, KEPT], ids=["full", "pruned"])
def test_replayed_drafts_are_the_likeliest_of_every_slot(target, kept):
    module = drafter(target, GAMMA, kept=kept)
    module.attention = gathered_attention
    caches, capture = paged_caches(module, [20] * 3), Reruns()
    graphs = StepGraphs(capture)
    features = torch.randn(27, len(TAPS) * 16, generator=torch.Generator().manual_seed(2))
    module.extend_ragged(features, caches, [9, 14, 4])
    for anchors in ([1, 2, 3], [7, 0, 7]):
        batch = RaggedBatch.of(caches, [GAMMA] * 3, CPU, Room(3, 3))
        work = greedy_drafting(module, caches[0].pool, batch)
        (drafts,) = graphs.run(("draft", 3), work, torch.tensor(anchors), batch.data)
        blocks, previous, expected = module.begin_each(anchors, caches, GAMMA), torch.tensor(anchors), []
        for _ in range(GAMMA):
            best = blocks.step(previous)[0].argmax(-1)
            previous = best if kept is None else kept[best]
            expected.append(previous)
        assert drafts.tolist() == torch.stack(expected, 1).tolist()
    assert (capture.captured, capture.replayed) == (1, 2)
