"""Where a target's hidden states come from: a target in this process, or one in another process of the job.

Between processes travel token ids one way, and tapped features and last hidden states (before the LM head) the other:
O(d) numbers a token, where logits would be O(V). Shapes: S tokens of a sequence, R of them with a last hidden state,
m taps, d width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dspark.types import TargetOutput


@dataclass(frozen=True, slots=True)
class SequenceStates:
    """One sequence: `features` [S, m * d] bf16 at every position, `last_hidden` [R, d] at those that were asked for."""

    features: Tensor
    last_hidden: Tensor


class StatesTarget(Protocol):
    """A target that runs whole padded sequences."""

    def states(self, token_ids: Tensor, lengths: Tensor, taps: Sequence[int]) -> TargetOutput: ...


class StateSource(Protocol):
    """Gives the states of whole sequences; `places` [R] of each are the positions of its last hidden states."""

    def states(
        self, sequences: Sequence[Sequence[int]], places: Sequence[Tensor], taps: Sequence[int]
    ) -> list[SequenceStates]: ...


@dataclass(frozen=True, slots=True)
class LocalStates:
    """Runs the target here, all sequences in one padded batch."""

    target: StatesTarget

    @torch.no_grad()
    def states(
        self, sequences: Sequence[Sequence[int]], places: Sequence[Tensor], taps: Sequence[int]
    ) -> list[SequenceStates]:
        """See `StateSource`."""
        lengths = torch.tensor([len(sequence) for sequence in sequences])
        tokens = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.long)
        for row, sequence in zip(tokens, sequences, strict=True):
            row[: len(sequence)] = torch.tensor(sequence)
        output = self.target.states(tokens, lengths, taps)
        return [
            SequenceStates(output.features[b, :length].to(torch.bfloat16), output.last_hidden[b, places[b]])
            for b, length in enumerate(lengths.tolist())
        ]


class Channel(Protocol):
    """A line to one other process."""

    def send(self, tensor: Tensor) -> None: ...

    def receive(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor: ...


_HEADER = 3
"""Integers before a request: how many sequences, tokens and places follow. No sequences: no more requests."""


@dataclass(frozen=True, slots=True)
class RemoteStates:
    """Asks the process at the other end of `channel`, which runs `StateServer`, for the states of a target.

    `width` is the target's d and `dtype` that of its last hidden states.
    """

    channel: Channel
    width: int
    dtype: torch.dtype = torch.float32

    def states(
        self, sequences: Sequence[Sequence[int]], places: Sequence[Tensor], taps: Sequence[int]
    ) -> list[SequenceStates]:
        """See `StateSource`; the taps are agreed on before, so they do not travel."""
        lengths, counts = [len(sequence) for sequence in sequences], [len(own) for own in places]
        tokens = [token for sequence in sequences for token in sequence]
        self.channel.send(torch.tensor([len(lengths), len(tokens), sum(counts)]))
        self.channel.send(torch.tensor([*lengths, *counts, *tokens, *torch.cat(list(places)).tolist()]).int())
        features = self.channel.receive((len(tokens), len(taps) * self.width), torch.bfloat16)
        last_hidden = self.channel.receive((sum(counts), self.width), self.dtype)
        pairs = zip(torch.split(features, lengths), torch.split(last_hidden, counts), strict=True)
        return [SequenceStates(own, hidden) for own, hidden in pairs]

    def close(self) -> None:
        """Tell the other end that no more requests come."""
        self.channel.send(torch.zeros(_HEADER, dtype=torch.long))


@dataclass(frozen=True, slots=True)
class StateServer:
    """Answers requests with the states of `source`, at the target's `taps`."""

    source: StateSource
    taps: tuple[int, ...]
    dtype: torch.dtype = torch.float32

    def answer(self, channel: Channel, header: Tensor) -> bool:
        """Read the request behind `header` and send what it asks for; False when it says that none follow."""
        count, tokens, rows = header.tolist()
        if count == 0:
            return False
        body = channel.receive((2 * count + tokens + rows,), torch.int32).long()
        lengths, counts, ids, places = torch.split(body, [count, count, tokens, rows])
        sequences = [own.tolist() for own in torch.split(ids, lengths.tolist())]
        found = self.source.states(sequences, torch.split(places, counts.tolist()), self.taps)
        channel.send(torch.cat([states.features for states in found]))
        channel.send(torch.cat([states.last_hidden for states in found]).to(self.dtype))
        return True


def header_shape() -> tuple[int]:
    """Of the int64 tensor that precedes a request."""
    return (_HEADER,)


def bytes_of_states(tokens: int, places: int, width: int, taps: int, dtype: torch.dtype = torch.float32) -> int:
    """What the answer to a request weighs: bf16 features of every token, last hidden states at the places asked for."""
    return 2 * tokens * taps * width + dtype.itemsize * places * width
