"""The reference loop on the embedded model: drafts leave greedy text as it is, through real K/V caches."""

import pytest
import torch

from dspark.drafters.fake import FakeBlock, FakeDrafter
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.targets.registry import load_target
from dspark.types import Cache, SamplingParams

TOKENS = 24
PROMPT = (504, 3575, 282, 4649, 314)


class Prompter(FakeDrafter):
    """Proposes a known text, every fifth token of it wrong."""

    def __init__(self, text: list[int], vocab_size: int, feature_size: int) -> None:
        super().__init__(lambda tokens: self._next(len(tokens)), vocab_size, 4, feature_size, (-1, 3))
        self._text, self._position = text, 0

    def begin(self, anchor: int, cache: Cache, gamma: int | None = None) -> FakeBlock:
        self._position = cache.length
        return super().begin(anchor, cache, gamma)

    def _next(self, slot: int) -> torch.Tensor:
        position = self._position + slot
        logits = torch.zeros(self.info.vocab_size)
        logits[self._text[position] if position % 5 else 0] = 9.0
        return logits


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [2, 512])
def test_greedy_text_is_the_same_with_drafts(model_wheel: str, chunk: int) -> None:
    target = load_target(model_wheel, dtype="fp32", kernel="plain")
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    plain = ReferenceLoop(target).generate(PROMPT, params)
    text = [*PROMPT, *plain.token_ids, *[0] * 8]
    drafter = Prompter(text, target.info.vocab_size, 2 * target.info.hidden_size)
    result = ReferenceLoop(target, drafter, DecodeOptions(prefill_chunk=chunk)).generate(PROMPT, params)
    assert result.token_ids == plain.token_ids
    assert result.metrics["accepted_tokens"] > TOKENS // 2
    assert result.tally.rounds < TOKENS // 2
