"""Records are the same whether computed alone, in a padded batch, or read back from disk."""

from pathlib import Path

import pytest
import torch

from dspark.errors import CompatibilityError
from dspark.training.teacher import Teacher
from tests.training.tiny import WIDTH, TinyTarget, tiny_answers


def test_padding_does_not_change_a_record() -> None:
    answers = tiny_answers(4)
    together = Teacher(TinyTarget(), (0, 3), 5).records(answers)
    for answer, record in zip(answers, together, strict=True):
        alone = Teacher(TinyTarget(), (0, 3), 5).records([answer])[0]
        assert record.features.equal(alone.features)
        assert record.ids.equal(alone.ids)
        torch.testing.assert_close(record.probabilities, alone.probabilities)


def test_stored_records_spare_the_target(tmp_path: Path) -> None:
    answers, target = tiny_answers(4), TinyTarget()
    teacher = Teacher(target, (0, 3), 5, tmp_path)
    fresh = teacher.records(answers)
    calls = target.calls
    again = teacher.records(answers)
    assert target.calls == calls
    assert all(a.features.equal(b.features) and a.ids.equal(b.ids) for a, b in zip(fresh, again, strict=True))
    assert not list(tmp_path.glob("*.partial"))


def test_records_of_other_taps_are_refused(tmp_path: Path) -> None:
    answers = tiny_answers(1)
    Teacher(TinyTarget(), (0, 3), 5, tmp_path).records(answers)
    with pytest.raises(CompatibilityError, match="other tokens or taps"):
        Teacher(TinyTarget(), (0, 2, 3), 5, tmp_path).records(answers)


def test_features_come_in_tap_order() -> None:
    answer = tiny_answers(1)
    first = Teacher(TinyTarget(), (0, 3), 5).records(answer)[0].features
    second = Teacher(TinyTarget(), (3,), 5).records(answer)[0].features
    assert first[:, WIDTH:].equal(second)
