"""One request's draws: what the drafter proposes and what the target makes of it, at its sampling parameters.

Shapes: k drafts of a round, V vocabulary, V_draft draft vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.params import has_penalties, is_greedy
from dspark.core.penalties import TokenHistory, penalised, penalised_block
from dspark.core.rejection import RejectionRule, verify, verify_greedy
from dspark.core.sampling import draw, greedy_tokens, is_masked, probabilities
from dspark.core.streams import RandomStreams, Stream
from dspark.types import SamplingParams, Verdict, as_ids


class RoundSampler(Protocol):
    """Draws the drafts of one round, left to right, then judges them.

    `laws` are (p [k + 1, V], q [k, V]) once the round was judged by laws over the vocabulary.
    """

    drafts: list[int]
    laws: tuple[Tensor, Tensor] | None

    def draft(self, logits: Tensor) -> int | None:
        """The next draft (a target id) from raw draft logits [V_draft]; None, ending the block, if all are masked."""
        ...

    def copy(self, tokens: Sequence[int]) -> None:
        """Take `tokens`, found without a law, as the drafts of the round."""
        ...

    def judge(self, logits: Tensor) -> Verdict:
        """The outcome given the target's raw logits [k + 1, V] after 0, ..., k drafts: the first k are judged."""
        ...


@dataclass(frozen=True, slots=True)
class RequestSampler:
    """Makes the sampler of each round; remembers, for penalties, what was committed."""

    params: SamplingParams
    vocabulary: DraftVocabulary
    history: TokenHistory
    rule: RejectionRule
    greedy_drafts: bool

    def round(self, start: int, max_drafts: int) -> RoundSampler:
        """The sampler of the round whose first token has output position `start`."""
        if is_greedy(self.params):
            return GreedyRound(self.params, self.vocabulary, self.history)
        return SampledRound(self, start, max_drafts)

    def commit(self, tokens: Iterable[int]) -> None:
        """Let the penalties see `tokens`."""
        self.history.append(tokens)


class GreedyRound:
    """Temperature 0: argmax on both sides; no random numbers, no laws over the vocabulary."""

    def __init__(self, params: SamplingParams, vocabulary: DraftVocabulary, history: TokenHistory) -> None:
        self._params, self._vocabulary, self._history = params, vocabulary, history
        self.drafts: list[int] = []
        self.laws: tuple[Tensor, Tensor] | None = None

    def draft(self, logits: Tensor) -> int | None:
        """The most likely draft."""
        token = self._best(logits)
        if token is not None:
            self.drafts.append(token)
        return token

    def copy(self, tokens: Sequence[int]) -> None:
        """The drafts are `tokens`."""
        self.drafts.extend(tokens)

    def judge(self, logits: Tensor) -> Verdict:
        """Keep drafts while they are the target's most likely tokens."""
        logits = penalised_block(logits, self._params, self._history, self.drafts)
        return verify_greedy(greedy_tokens(logits), self.drafts[: len(logits) - 1])

    def _best(self, logits: Tensor) -> int | None:
        if has_penalties(self._params):
            logits = penalised(self._vocabulary.scatter(logits), self._params, self._history, self.drafts)
            return greedy_tokens(logits[None])[0]
        (best,) = greedy_tokens(logits[None])
        return None if best is None else self._vocabulary.token(best)


class SampledRound:
    """Temperature above 0: drafts drawn from q, judged by a rule against p, both behind the same processors."""

    def __init__(self, request: RequestSampler, start: int, max_drafts: int) -> None:
        self._request, self._start = request, start
        self._streams = RandomStreams(request.params.seed)
        self._uniforms = self._streams.uniforms(Stream.DRAFT, start, max_drafts)
        self._draft_params = replace(request.params, temperature=0.0) if request.greedy_drafts else request.params
        self._q: list[Tensor] = []
        self.drafts: list[int] = []
        self.laws: tuple[Tensor, Tensor] | None = None

    def draft(self, logits: Tensor) -> int | None:
        """A token drawn from exactly the vector that is kept as q."""
        logits = self._request.vocabulary.scatter(logits)
        if is_masked(logits):
            return None
        params = self._draft_params
        q = probabilities(penalised(logits, params, self._request.history, self.drafts), params)
        token = draw(q, self._uniforms[len(self.drafts)])
        self._q.append(q)
        self.drafts.append(token)
        return token

    def copy(self, tokens: Sequence[int]) -> None:
        """The drafts are `tokens`; as nothing was drawn, each is judged with a one-hot q."""
        self.drafts.extend(tokens)

    def judge(self, logits: Tensor) -> Verdict:
        """Apply the rejection rule."""
        k, params = len(logits) - 1, self._request.params
        p = probabilities(penalised_block(logits, params, self._request.history, self.drafts), params)
        drafts = self.drafts[:k]
        q = torch.stack(self._q[:k]) if k and self._q else one_hot(as_ids(drafts), p.shape[-1]).to(p)
        self.laws = p, q
        accept = self._streams.uniforms(Stream.ACCEPT, self._start, k)
        recover = self._streams.uniforms(Stream.RECOVER, self._start, k + 1)
        return verify(self._request.rule, p, q, drafts, accept, recover)
