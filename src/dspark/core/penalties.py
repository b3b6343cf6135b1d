"""Penalties on tokens that occurred before. Shapes: k drafts of one block, V vocabulary."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

import torch
from torch import Tensor

from dspark.core.params import has_penalties
from dspark.types import SamplingParams


class TokenHistory:
    """The tokens of one request as the penalties see them: which are in the prompt, how often each was generated."""

    def __init__(self, prompt: Iterable[int] = (), output: Iterable[int] = ()) -> None:
        self._prompt = frozenset(prompt)
        self._output = Counter(output)

    def append(self, tokens: Iterable[int]) -> None:
        """Count newly generated `tokens`."""
        for token in tokens:
            self._output[token] += 1  # `update` asks of each call what it was given, which takes longer than counting

    def followed_by(self, tokens: Iterable[int]) -> Self:
        """A copy in which `tokens` were generated too; the original stays as it is."""
        other = type(self)(())
        other._prompt, other._output = self._prompt, self._output.copy()
        other.append(tokens)
        return other

    def seen(self) -> list[int]:
        """Ids of the prompt and the output, each once."""
        return sorted(self._prompt.union(self._output))

    def output_counts(self) -> Counter[int]:
        """How often each generated id occurred."""
        return self._output


def penalised(logits: Tensor, params: SamplingParams, history: TokenHistory, drafts: Sequence[int] = ()) -> Tensor:
    """Logits [V] of the next token after `history` and `drafts`, penalties applied.

    Repetition (prompt and output) divides positive logits and multiplies negative ones, as in CTRL (Keskar et al.
    2019) and Hugging Face; presence and frequency (output only) subtract, as in the OpenAI API and vLLM.
    """
    if not has_penalties(params):
        return logits
    history, logits = history.followed_by(drafts), logits.clone()
    seen = torch.tensor(history.seen(), dtype=torch.long, device=logits.device)
    scores = logits[seen]
    logits[seen] = torch.where(scores > 0, scores / params.repetition_penalty, scores * params.repetition_penalty)
    counts = history.output_counts()
    output = torch.tensor(list(counts), dtype=torch.long, device=logits.device)
    times = torch.tensor(list(counts.values()), dtype=logits.dtype, device=logits.device)
    logits[output] -= params.presence_penalty + params.frequency_penalty * times
    return logits


def penalised_block(logits: Tensor, params: SamplingParams, history: TokenHistory, drafts: Sequence[int]) -> Tensor:
    """Logits [k + 1, V] of the positions after `history` and 0, 1, ..., k of the `drafts`, each with its own past."""
    if not has_penalties(params):
        return logits
    rows = [penalised(row, params, history, drafts[:j]) for j, row in enumerate(logits)]
    return torch.stack(rows)
