"""Greedy drafts of a Markov head in one compiled call.

Shapes: B blocks, S slots, R rank, V vocabulary, V_draft draft vocabulary.
"""

from ctypes import byref

import torch
from torch import Tensor

from dspark.errors import CompatibilityError, SamplingError
from dspark.nn.compiled.law_signals import LIMIT
from dspark.nn.compiled.library import MarkovHeadStruct, decoder_library
from dspark.nn.compiled.linear import CompiledLinear, check_rows


class CompiledChain:
    """The head W1 [V, R], W2 [V_draft, R]; `ids` [V_draft] are the target's, None where the drafter has the same."""

    def __init__(self, w1: Tensor, w2: CompiledLinear, ids: Tensor | None) -> None:
        check_rows(w1, w2.inputs)
        if w1.dim() != 2 or not w1.is_contiguous() or w2.bias is not None:
            raise CompatibilityError("a compiled chain takes W1 [V, R], whole in memory, and W2 without a bias")
        if ids is not None:
            _check_ids(ids, len(w1))
            if len(ids) != w2.outputs or not ids.is_contiguous():
                raise CompatibilityError(f"found {list(ids.shape)} ids, expected [{w2.outputs}] whole in memory")
        self._library = decoder_library()
        self._kept = (w1, w2, ids)
        self._width = w2.outputs
        self._head = MarkovHeadStruct(
            w2.inputs, w2.outputs, w2.packing, w1.data_ptr(), w2.packed.data_ptr(),
            None if ids is None else ids.data_ptr(),
        )  # fmt: skip

    def run(self, base: Tensor, previous: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(drafts as target ids, peaks and entropies of their laws as `law_signals` finds them), each [B, S].

        The blocks have logits `base` [B, S, V_draft] before the head, and stand behind the tokens `previous` [B].

        Raises:
            SamplingError: logits are not finite.
        """
        check_rows(base, self._width)
        _check_ids(previous, len(self._kept[0]))
        base, last = base.contiguous(), previous.clone()
        rows, slots, _ = base.shape
        tokens, peaks, entropies = last.new_empty(rows, slots), base.new_empty(rows, slots), base.new_empty(rows, slots)
        logits = base.new_empty(rows * self._width)
        self._library.dspark_chain(
            byref(self._head), base.data_ptr(), rows, slots, last.data_ptr(), tokens.data_ptr(),
            peaks.data_ptr(), entropies.data_ptr(), logits.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        if (last < 0).any():
            raise SamplingError("the drafter's logits hold NaN or an infinity; check its weights")
        return tokens, peaks.clamp_(-LIMIT, LIMIT), entropies


def _check_ids(ids: Tensor, vocabulary: int) -> None:
    """Raises CompatibilityError unless `ids` [N] are int64 tokens of the `vocabulary`."""
    if ids.dtype is not torch.int64 or ids.dim() != 1:
        raise CompatibilityError(f"found ids {ids.dtype} {list(ids.shape)}, expected torch.int64 [N]")
    if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < vocabulary):
        raise CompatibilityError(f"found ids from {int(ids.min())} to {int(ids.max())}, expected 0 to {vocabulary - 1}")
