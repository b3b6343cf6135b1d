"""The draws of one round of many requests at once: for each request what a round of its own gives, to the bit.

Requests with equal filters are drawn and judged together. Token rejection and greedy decoding look at a request's
positions one after another, up to the first draft that does not survive. Other rules are given laws over the
vocabulary. All of it happens on the host, wherever the logits come from; but greedy drafts are found where they are.

Shapes: B requests, k_i drafts of request i that are judged, N = k_1 + 1 + ... + k_B + 1 rows, V vocabulary, V_draft
draft vocabulary.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dspark.core.laws import Law, draw_each, masked_error
from dspark.core.params import has_penalties, is_greedy
from dspark.core.rejection import verify_greedy
from dspark.core.row_laws import row_laws
from dspark.core.sampling import greedy_tokens
from dspark.core.streams import UniformReader
from dspark.engine.logprobs import token_logprobs
from dspark.engine.request_round import LawKey, RequestRound
from dspark.types import SamplingParams, Verdict

if TYPE_CHECKING:
    from dspark.engine.sampler import RequestSampler


NOBODY: Mapping[int, Sequence[int | None]] = MappingProxyType({})


class BatchRound:
    """Draws the drafts of B requests of one drafter, slot by slot, then judges them all.

    Each request's drafts, accepted drafts and token follow from its own logits and seed alone, whatever else is in the
    batch. `drafts` [B] are lists of target ids.
    """

    def __init__(self, samplers: Sequence["RequestSampler"], starts: Sequence[int], max_drafts: Sequence[int]) -> None:
        reader = UniformReader()
        self._rounds = [
            RequestRound(each.params, each.vocabulary, each.history, each.rule, each.greedy_drafts, start, most, reader)
            for each, start, most in zip(samplers, starts, max_drafts, strict=True)
        ]

    @property
    def drafts(self) -> list[list[int]]:
        """The drafts so far."""
        return [one.drafts for one in self._rounds]

    def draft(self, logits: Tensor, rows: Sequence[int] | None = None) -> list[int | None]:
        """The next draft of every request from raw draft logits [B, V_draft]; of the requests `rows` alone if given.

        None ends a request's block: all tokens are masked, or it has its `max_drafts`, or copied ones. Whoever got
        None stays with what it has.

        Raises:
            SamplingError: the logits of a request that drafts hold NaN or +inf.
        """
        asked = self._rounds if rows is None else [self._rounds[row] for row in rows]
        if logits.device.type != "cpu" and not all(_takes_best(one.draft_params) for one in asked):
            logits = logits.cpu()
        tokens: list[int | None] = [None] * len(asked)
        for places in _alike((place, one.draft_key) for place, one in enumerate(asked) if one.drafts_more):
            for place, token in zip(places, _draft_alike([asked[i] for i in places], logits, places), strict=True):
                tokens[place] = token
        for one, token in zip(asked, tokens, strict=True):
            one.open = token is not None
        return tokens

    @property
    def drafts_best(self) -> bool:
        """Whether the likeliest tokens of raw draft logits are all that anybody's drafts need."""
        return all(_takes_best(one.draft_params) for one in self._rounds)

    def take(self, tokens: Sequence[Sequence[int]]) -> None:
        """Each request's next drafts are the likeliest ones, its of `tokens` [B], as many as it may have."""
        for one, own in zip(self._rounds, tokens, strict=True):
            for token in own:
                if one.drafts_more:
                    one.add(token)

    def copy(self, row: int, tokens: Sequence[int]) -> None:
        """Take `tokens`, found without a law, as the drafts of request `row`, which drafts no others."""
        self._rounds[row].copy(tokens)

    def alone(self, row: int) -> "BatchRound":
        """The round of request `row`, as a batch of one."""
        one = BatchRound((), (), ())
        one._rounds = [self._rounds[row]]
        return one

    @property
    def takes_best(self) -> list[bool]:
        """For each request, whether the target's likeliest tokens are all that judging it needs."""
        return [one.takes_best for one in self._rounds]

    def judge(
        self, logits: Tensor, lengths: Sequence[int], best: Mapping[int, Sequence[int | None]] = NOBODY
    ) -> list[Verdict]:
        """The outcome of each request given the target's raw logits [N, V], where k = `lengths`.

        Request after request: the rows after 0, ..., k_i drafts. Only its first k_i drafts are judged. Requests in
        `best`, which must be among those that `takes_best` names, have their k_i + 1 likeliest tokens there instead.

        Raises:
            SamplingError: at a position that decides, every token is masked, or the logits hold NaN or +inf.
        """
        counts = (0 if row in best else length + 1 for row, length in enumerate(lengths))
        logits = logits.cpu()
        begins = list(accumulate(counts, initial=0))
        verdicts: dict[int, Verdict] = {}
        in_turn = []
        for row, (one, length) in enumerate(zip(self._rounds, lengths, strict=True)):
            block = logits[begins[row] : begins[row] + length + 1]
            if row in best:
                verdicts[row] = verify_greedy(best[row], one.drafts[:length])
            elif one.is_greedy:
                verdicts[row] = _judge_greedy(one, block)
            elif one.goes_in_turn:
                in_turn.append(row)
            else:
                verdicts[row] = one.judge_block(block)
        verdicts.update(self._judge_in_turn(in_turn, logits, begins, lengths))
        return [self._with_logprobs(row, verdicts[row], logits, begins[row]) for row in range(len(lengths))]

    def laws(self, row: int, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Laws p [k + 1, V], q [k, V] by which a sampled request is judged, given its raw `logits` [k + 1, V]."""
        return self._rounds[row].laws(logits.cpu())

    def _with_logprobs(self, row: int, verdict: Verdict, logits: Tensor, begin: int) -> Verdict:
        """The verdict with log-probabilities, if its request asks for them; its rows begin at `begin`."""
        one = self._rounds[row]
        if one.params.logprobs is None:
            return verdict
        tokens = [*one.drafts[: verdict.accepted], verdict.token]
        rows = logits[begin : begin + len(tokens)]
        return replace(verdict, logprobs=token_logprobs(rows, tokens, one.params.logprobs))

    def _judge_in_turn(
        self, waiting: list[int], logits: Tensor, begins: Sequence[int], lengths: Sequence[int]
    ) -> dict[int, Verdict]:
        verdicts: dict[int, Verdict] = {}
        place = 0
        while waiting:
            for rows in _alike((row, self._rounds[row].key) for row in waiting):
                laws = _target_laws([self._rounds[row] for row in rows], logits, [begins[row] for row in rows], place)
                for row, p in zip(rows, laws, strict=True):  # each law is used up before the next one is made
                    verdict = self._rounds[row].judge_row(p, lengths[row], place)
                    if verdict is not None:
                        verdicts[row] = verdict
            waiting = [row for row in waiting if row not in verdicts]
            place += 1
        return verdicts


def _takes_best(params: SamplingParams) -> bool:
    """Whether the likeliest tokens of raw logits are all that drafting needs."""
    return is_greedy(params) and not has_penalties(params)


def _alike(keyed: Iterable[tuple[int, LawKey]]) -> list[list[int]]:
    groups: defaultdict[LawKey, list[int]] = defaultdict(list)
    for item, key in keyed:
        groups[key].append(item)
    return list(groups.values())


def _draft_alike(rounds: Sequence[RequestRound], logits: Tensor, rows: Sequence[int]) -> list[int | None]:
    """The next drafts of `rounds` with equal keys, whose raw logits are `rows` of [B, V_draft]."""
    first = rounds[0]
    params, vocabulary = first.draft_params, first.vocabulary
    if first.draft_key.penalised:
        logits = torch.stack([one.penalised_draft(logits[row]) for one, row in zip(rounds, rows, strict=True)])
        rows = range(len(rounds))
    if is_greedy(params):
        best = greedy_tokens(logits if len(rows) == len(logits) else logits[list(rows)])
        tokens = [None if token is None else vocabulary.token(token) for token in best]
        for one, token in zip(rounds, tokens, strict=True):
            if token is not None:
                one.add(token)
        return tokens
    return _draw_drafts(rounds, list(row_laws(logits, rows, params, vocabulary.ids)))


def _draw_drafts(rounds: Sequence[RequestRound], laws: Sequence[Law | None]) -> list[int | None]:
    alive = [(one, law) for one, law in zip(rounds, laws, strict=True) if law is not None]
    places = draw_each([law for _, law in alive], [one.draft_uniform() for one, _ in alive])
    for (one, law), place in zip(alive, places, strict=True):
        one.add(place if law.ids is None else int(law.ids[place]), law)
    return [None if law is None else one.drafts[-1] for one, law in zip(rounds, laws, strict=True)]


def _judge_greedy(one: RequestRound, block: Tensor) -> Verdict:
    """The verdict given raw logits [k + 1, V]; rows beyond the first draft that does not survive are not read."""
    best = (greedy_tokens(one.penalised_row(row, i)[None])[0] for i, row in enumerate(block))
    return verify_greedy(best, one.drafts[: len(block) - 1])


def _target_laws(rounds: Sequence[RequestRound], logits: Tensor, begins: Sequence[int], place: int) -> Iterator[Law]:
    """The target's laws after `place` drafts of `rounds` with equal keys, whose rows of [N, V] begin at `begins`."""
    params = rounds[0].params
    rows = [begin + place for begin in begins]
    if rounds[0].key.penalised:
        lines = [one.penalised_row(logits[row], place) for one, row in zip(rounds, rows, strict=True)]
        logits, rows = torch.stack(lines), list(range(len(lines)))
    for law in row_laws(logits, rows, params):
        if law is None:
            raise masked_error()
        yield law
