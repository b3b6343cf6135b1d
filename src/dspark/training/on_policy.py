"""The accepted length that users will see: greedy decoding of held-out prompts with the drafter in training.

The loop's greedy output is the target's own, whatever is drafted (contract 2), so the target writes it once per run. A
measurement then follows the text with the drafter alone: a draft is accepted where it equals the text.

Shapes: P prompt tokens, n text tokens, m taps, d width.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from dspark.core.tau import Round, RoundTally
from dspark.data.answers import Answer, read_jsonl
from dspark.disk import naming
from dspark.errors import FormatError
from dspark.types import Cache, Drafter, TargetInfo, TargetOutput, as_ids


class WritingTarget(Protocol):
    """A target that can write greedy texts, and read them again in one forward."""

    info: TargetInfo

    def new_cache(self, capacity: int) -> Cache: ...

    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput: ...

    def logits(self, last_hidden: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class GreedyText:
    """The target's greedy answer `token_ids` [n] to `prompt_ids` [P]; `ended` by an end token, its last one.

    Other texts are `overhang` tokens longer than the limit: the last round of a loop may accept drafts beyond it.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    ended: bool


@dataclass(frozen=True, slots=True)
class OnPolicyResult:
    """What greedy decoding made of the texts: tau and conditional acceptance by position, over `rounds` rounds."""

    tau: float
    acceptance: tuple[float, ...]
    rounds: int
    texts: int

    def as_json(self) -> dict[str, Any]:
        """All figures, rates rounded as those of a step are."""
        rates = [round(rate, 4) for rate in self.acceptance]
        return {"tau": self.tau, "acceptance": rates, "rounds": self.rounds, "texts": self.texts}


@dataclass(frozen=True, slots=True)
class OnPolicyProbe:
    """Measures a drafter along texts of at most `limit` tokens, whose features [P + n - 1, m * d] are at hand."""

    texts: tuple[GreedyText, ...]
    features: tuple[Tensor, ...]
    limit: int

    def __call__(self, drafter: Drafter) -> OnPolicyResult:
        """The rounds of all texts, counted as the reference loop counts them."""
        pairs = zip(self.texts, self.features, strict=True)
        tally = RoundTally.merged(follow(drafter, text, features, self.limit) for text, features in pairs)
        acceptance = tuple(tally.conditional_acceptance_by_position())
        return OnPolicyResult(tally.tau, acceptance, tally.rounds, len(self.texts))


@torch.no_grad()
def follow(drafter: Drafter, text: GreedyText, features: Tensor, limit: int) -> RoundTally:
    """Rounds of greedy decoding along `text` up to `limit` tokens, with its features [P + n - 1, m * d]."""
    first = len(text.prompt_ids)
    last = min(len(text.token_ids), limit) - 1
    cache = drafter.new_cache(first + len(text.token_ids) + drafter.info.gamma)
    drafter.extend(features[:first], cache)
    tally, anchor = RoundTally(first_tokens=1), 0
    while anchor < last:
        accepted = _accepted(drafter, cache, text.token_ids[anchor:])
        cache.rollback(first + anchor)
        emitted = min(accepted + 1, last - anchor)
        ended = text.ended and accepted == last - anchor
        tally.add(Round(drafter.info.gamma, drafter.info.gamma, accepted, emitted, ended))
        drafter.extend(features[first + anchor : first + anchor + emitted], cache)
        anchor += emitted
    return tally


def _accepted(drafter: Drafter, cache: Cache, tokens: Sequence[int]) -> int:
    """How many greedy drafts after the anchor `tokens[0]` equal the tokens behind it."""
    kept = drafter.info.draft_token_ids
    block = drafter.begin(tokens[0], cache)
    for slot, (previous, expected) in enumerate(pairwise(tokens[: drafter.info.gamma + 1])):
        likeliest = int(block.step(previous)[0].argmax())
        if (likeliest if kept is None else int(kept[likeliest])) != expected:
            return slot
    return min(drafter.info.gamma, len(tokens) - 1)


@torch.no_grad()
def write_greedily(target: WritingTarget, prompt_ids: tuple[int, ...], limit: int, overhang: int) -> GreedyText:
    """The target's greedy answer: up to an end token within `limit`, or `limit` + `overhang` tokens."""
    length = min(limit + overhang, target.info.max_positions - len(prompt_ids))
    cache = target.new_cache(len(prompt_ids) + length)
    tokens: list[int] = []
    pending = as_ids(prompt_ids)
    while len(tokens) < length:
        hidden = target.forward(pending, cache).last_hidden[-1:]
        tokens.append(int(target.logits(hidden).argmax()))
        if tokens[-1] in target.info.eos_token_ids and len(tokens) <= limit:
            return GreedyText(prompt_ids, tuple(tokens), ended=True)
        pending = as_ids(tokens[-1:])
    return GreedyText(prompt_ids, tuple(tokens), ended=False)


def build_probe(
    target: WritingTarget, answers: Sequence[Answer], limit: int, gamma: int, taps: Sequence[int], path: Path
) -> OnPolicyProbe:
    """A probe over the prompts of `answers`; texts are found in `path`, or written and kept there, one line each.

    Raises:
        FormatError: `path` holds something else.
    """
    origin = {"target": target.info.weights_hash, "limit": limit, "overhang": gamma}
    rows = _read_rows(path)
    found = {text.prompt_ids: text for row in rows if (text := _text(row, path, origin)) is not None}
    for answer in answers:
        if answer.prompt_ids not in found:
            text = write_greedily(target, answer.prompt_ids, limit, gamma)
            found[text.prompt_ids] = text
            rows.append(origin | asdict(text))
            _write_rows(path, rows)
    texts = tuple(found[answer.prompt_ids] for answer in answers)
    return OnPolicyProbe(texts, tuple(_features(target, text, taps) for text in texts), limit)


@torch.no_grad()
def _features(target: WritingTarget, text: GreedyText, taps: Sequence[int]) -> Tensor:
    tokens = as_ids((*text.prompt_ids, *text.token_ids[:-1]))
    return target.forward(tokens, target.new_cache(len(tokens)), taps).features.clone()


def _read_rows(path: Path) -> list[dict[str, Any]]:
    return list(read_jsonl(path)) if path.is_file() else []


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    partial = path.with_name(path.name + ".partial")
    with naming(path):
        partial.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    partial.replace(path)


def _text(row: Mapping[str, Any], path: Path, origin: Mapping[str, Any]) -> GreedyText | None:
    """The text of a row, None if it was written under other conditions than `origin`."""
    try:
        text = GreedyText(tuple(row["prompt_ids"]), tuple(row["token_ids"]), bool(row["ended"]))
        return text if all(row[key] == value for key, value in origin.items()) else None
    except (KeyError, TypeError) as error:
        raise FormatError(f"{path} holds no greedy texts: {error}. Remove it; they are written again.") from error
