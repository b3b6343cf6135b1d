"""Which process does what, and that states which travelled are the target's own, at O(d) bytes a token."""

from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from dspark.data.answers import Answer
from dspark.data.teacher_record import TeacherRecord
from dspark.errors import ConfigError
from dspark.training.batches import draw_anchors, taught_tokens
from dspark.training.hidden_states import LocalStates, RemoteStates, StateServer, bytes_of_states
from dspark.training.placement import Placement, joined, peers, place, serve
from dspark.training.teacher import Teacher
from dspark.training.world import ALONE
from tests.training.gloo import gloo
from tests.training.tiny import WIDTH, TinyTarget, tiny_answers

TAPS = (0, 3)


def test_every_trainer_has_one_target_process_which_knows_it() -> None:
    for trainers, targets in ((1, 1), (3, 2), (4, 2), (5, 3)):
        served = {rank: peers(rank, trainers, targets) for rank in range(trainers + targets)}
        for trainer in range(trainers):
            (own,) = served[trainer]
            assert [rank for rank in range(trainers, trainers + targets) if trainer in served[rank]] == [own]


def test_a_lone_process_joins_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with joined() as placement:
        assert placement == Placement(ALONE, trains=True, channels=())
        assert not torch.distributed.is_initialized()


def test_too_few_processes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="2 of 3 processes.*leaves 1"), joined(2):
        pass


def exchange(trainers: int, targets: int) -> tuple[list[TeacherRecord], int, int] | None:
    """Records that a trainer made of a remote target's states, and the bytes that came and went for them."""
    placement = place(trainers, targets)
    target = TinyTarget()
    if not placement.trains:
        serve(StateServer(LocalStates(target), TAPS), placement.channels)
        return None
    (channel,) = placement.channels
    source = RemoteStates(channel, WIDTH)
    records = Teacher(Headed(target), TAPS, 8, source=source).records(answers(), wanted())
    source.close()
    return records, channel.received, channel.sent


@dataclass
class Headed:
    """The part of a target that a trainer has: it counts the states that enter the LM head, and cannot run layers."""

    target: TinyTarget
    rows: int = field(default=0, init=False)

    @property
    def info(self):
        return self.target.info

    def states(self, *_: object) -> None:
        raise AssertionError("a trainer ran the target")

    def logits(self, last_hidden: Tensor) -> Tensor:
        self.rows += len(last_hidden)
        return self.target.logits(last_hidden)


def answers() -> list[Answer]:
    return tiny_answers(3)


def wanted() -> list[Tensor]:
    return [taught_tokens(a, p, 2) for a, p in zip(answers(), draw_anchors(answers(), 4, 0), strict=True)]


def test_only_hidden_states_travel() -> None:
    """Three trainers, two target processes: every byte is counted, and the records are those of a local target."""
    found = gloo(5, exchange, 3, 2)
    tokens, places = sum(len(a.token_ids) for a in answers()), sum(map(len, wanted()))
    expected = Teacher(TinyTarget(), TAPS, 8).records(answers(), wanted())
    for records, received, sent in found[:3]:
        assert received == bytes_of_states(tokens, places, WIDTH, len(TAPS))
        assert received == 2 * tokens * len(TAPS) * WIDTH + 4 * places * WIDTH
        assert sent == 8 * 3 + 4 * (2 * len(answers()) + tokens + places) + 8 * 3
        for ours, theirs in zip(records, expected, strict=True):
            for name in ("features", "ids"):
                assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
            torch.testing.assert_close(ours.probabilities, theirs.probabilities, rtol=0, atol=0, equal_nan=True)
    assert found[3:] == [None, None]


def test_what_travels_does_not_grow_with_the_vocabulary() -> None:
    """Qwen3-8B, five taps: 57 kB a token whatever the vocabulary is; float32 logits would add 608 kB."""
    assert bytes_of_states(1, 1, 4096, 5) == 57_344
    assert 10 * bytes_of_states(1, 1, 4096, 5) < 4 * 151_936


def test_the_head_runs_at_supervised_places_only() -> None:
    target = Headed(TinyTarget())
    source = LocalStates(target.target)
    Teacher(target, TAPS, 8, source=source).records(answers(), wanted())
    assert target.rows == sum(map(len, wanted())) < sum(len(a.response_ids) for a in answers())
