"""What one request has drawn in the round at hand. Shapes: k drafts that are judged, V vocabulary."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.laws import Law, dense, draw_from, one_token
from dspark.core.params import has_penalties, is_greedy
from dspark.core.penalties import TokenHistory, penalised, penalised_block
from dspark.core.rejection import RejectionRule, TokenRejection, survives, verify
from dspark.core.sampling import probabilities
from dspark.core.streams import Stream, UniformReader
from dspark.errors import ConfigError
from dspark.types import SamplingParams, Verdict


@dataclass(frozen=True, slots=True)
class LawKey:
    """What makes rows alike: their filters, and whether they are penalised (then no two rows share their logits)."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    penalised: bool


@dataclass(slots=True)
class RequestRound:
    """The drafts of a request and the laws `q` that they were drawn from; none for greedy and copied drafts.

    `draft_params` say how drafts are drawn; rows with equal `draft_key` are drawn together, with equal `key` judged.
    """

    params: SamplingParams
    vocabulary: DraftVocabulary
    history: TokenHistory
    rule: RejectionRule
    greedy_drafts: bool
    start: int
    most: int
    reader: UniformReader
    drafts: list[int] = field(default_factory=list)
    q: list[Law] = field(default_factory=list)
    open: bool = True
    draft_params: SamplingParams = field(init=False)
    key: LawKey = field(init=False)
    draft_key: LawKey = field(init=False)
    _draft_uniforms: list[float] = field(default_factory=list)
    _accept_uniforms: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draft_params = replace(self.params, temperature=0.0) if self.greedy_drafts else self.params
        self.key = law_key(self.params)
        self.draft_key = law_key(self.draft_params) if self.greedy_drafts else self.key

    @property
    def drafts_more(self) -> bool:
        """Whether the block may grow."""
        return self.open and len(self.drafts) < self.most

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is left to chance."""
        return is_greedy(self.params)

    @property
    def takes_best(self) -> bool:
        """Whether the target's likeliest tokens are all that judging it needs."""
        return self.is_greedy and not has_penalties(self.params) and self.params.logprobs is None

    @property
    def goes_in_turn(self) -> bool:
        """Whether drafts are judged one after another; a rule that varies token rejection is asked about the block."""
        return type(self.rule) is TokenRejection

    def add(self, token: int, q: Law | None = None) -> None:
        """Take `token`, drawn from `q`, as the next draft."""
        self.drafts.append(token)
        if q is not None:
            self.q.append(q)

    def copy(self, tokens: Sequence[int]) -> None:
        """The drafts are `tokens`, found without a law.

        Raises:
            ConfigError: the round has drafts.
        """
        if self.drafts:
            raise ConfigError(f"the round has {len(self.drafts)} drafts of its own; copy before drafting")
        self.drafts.extend(tokens)
        self.open = False

    def draft_uniform(self) -> float:
        """The random number of the next draft."""
        if not self._draft_uniforms:
            self._draft_uniforms = self._uniforms(Stream.DRAFT, self.most)
        return self._draft_uniforms[len(self.drafts)]

    def penalised_draft(self, logits: Tensor) -> Tensor:
        """Raw draft logits [V_draft] of the next slot after penalties."""
        if not has_penalties(self.params):
            return logits
        full = penalised(self.vocabulary.scatter(logits), self.params, self.history, self.drafts)
        return self.vocabulary.gather(full)

    def penalised_row(self, logits: Tensor, drafts: int) -> Tensor:
        """Raw target logits [V] after the first `drafts` drafts, after penalties."""
        return penalised(logits, self.params, self.history, self.drafts[:drafts])

    def judge_row(self, p: Law, k: int, place: int) -> Verdict | None:
        """The verdict if the round ends at `place` of its k drafts, where the target's law is p, which is used up."""
        if place == k:
            return Verdict(place, draw_from(p, self._recover(place)))
        if place == 0:
            self._accept_uniforms = self._uniforms(Stream.ACCEPT, k)
        draft = self.drafts[place]
        q = self.q[place] if self.q else one_token(draft)
        if survives(p, q, draft, self._accept_uniforms[place]):
            return None
        return Verdict(place, draw_from(p.excess(q), self._recover(place)))

    def judge_block(self, logits: Tensor) -> Verdict:
        """The verdict of any rule given raw target logits [k + 1, V]."""
        k = len(logits) - 1
        p, q = self.laws(logits)
        accept, recover = self._uniforms(Stream.ACCEPT, k), self._uniforms(Stream.RECOVER, k + 1)
        return verify(self.rule, p, q, self.drafts[:k], accept, recover)

    def laws(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Laws p [k + 1, V] and q [k, V] over the vocabulary, given raw target logits [k + 1, V]."""
        k = len(logits) - 1
        p = probabilities(penalised_block(logits, self.params, self.history, self.drafts), self.params)
        laws = self.q[:k] if self.q else [one_token(draft) for draft in self.drafts[:k]]
        rows = [dense(law, p.shape[-1]).to(p.dtype) for law in laws]
        return p, torch.stack(rows) if rows else p[:0]

    def _uniforms(self, stream: Stream, count: int) -> list[float]:
        return self.reader.read(self.params.seed, stream, self.start, count)

    def _recover(self, place: int) -> float:
        return self._uniforms(Stream.RECOVER, place + 1)[place]


def law_key(params: SamplingParams) -> LawKey:
    """The key of rows that these parameters turn into laws; all greedy rows without penalties are alike."""
    penalties = has_penalties(params)
    if is_greedy(params):
        return LawKey(0.0, 0, 1.0, 0.0, penalties)
    return LawKey(params.temperature, params.top_k, params.top_p, params.min_p, penalties)
