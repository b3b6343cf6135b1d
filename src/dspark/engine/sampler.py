"""One request's draws: what the drafter proposes and what the target makes of it, at its sampling parameters.

Shapes: k drafts of a round that are judged, V vocabulary, V_draft draft vocabulary.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.params import is_greedy
from dspark.core.penalties import TokenHistory
from dspark.core.rejection import RejectionRule
from dspark.engine.batch_sampler import BatchRound
from dspark.types import SamplingParams, Verdict


@dataclass(frozen=True, slots=True)
class RequestSampler:
    """How a request draws; remembers, for penalties, what was committed."""

    params: SamplingParams
    vocabulary: DraftVocabulary
    history: TokenHistory
    rule: RejectionRule
    greedy_drafts: bool

    def round(self, start: int, max_drafts: int) -> "RoundSampler":
        """The sampler of the round whose first token has output position `start`."""
        return RoundSampler(self, start, max_drafts)

    def commit(self, tokens: Iterable[int]) -> None:
        """Let the penalties see `tokens`."""
        self.history.append(tokens)


class RoundSampler:
    """A batch of one: draws the drafts of one round, left to right, then judges them.

    At temperature 0 both sides take their most likely token, without random numbers. Above, drafts are drawn from
    exactly the law q that they are judged with, against p, both behind the same processors.
    """

    def __init__(self, request: RequestSampler, start: int, max_drafts: int) -> None:
        self._batch = BatchRound([request], [start], [max_drafts])
        self._greedy = is_greedy(request.params)
        self._judged: Tensor | None = None

    @property
    def drafts(self) -> list[int]:
        """The drafts so far, as target ids."""
        return self._batch.drafts[0]

    def draft(self, logits: Tensor) -> int | None:
        """The next draft from raw draft logits [V_draft]; None, ending the block, if all are masked."""
        (token,) = self._batch.draft(logits[None])
        return token

    def copy(self, tokens: Sequence[int]) -> None:
        """Take `tokens`, found without a law, as the drafts of the round; each is judged with a one-hot q."""
        self._batch.copy(0, tokens)

    def judge(self, logits: Tensor) -> Verdict:
        """The outcome given the target's raw logits [k + 1, V] after 0, ..., k drafts: the first k are judged."""
        self._judged = logits
        (verdict,) = self._batch.judge(logits, [len(logits) - 1])
        return verdict

    def laws(self) -> tuple[Tensor, Tensor] | None:
        """(p [k + 1, V], q [k, V]) of a sampled round once it was judged, before its tokens are committed."""
        return None if self._greedy or self._judged is None else self._batch.laws(0, self._judged)
