"""Records are the same whether computed alone, in a padded batch, or read back from disk."""

import dataclasses
from pathlib import Path

import pytest
import torch

from dspark.errors import CompatibilityError, FormatError
from dspark.training.teacher import Teacher, token_digest
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


@pytest.mark.parametrize(
    ("taps", "top_k", "weights", "message"),
    [
        ((0, 2), 5, "weights", "taps '0,3', expected '0,2'"),
        ((0, 3), 6, "weights", "top_k '5', expected '6'"),
        ((0, 3), 5, "others", "target 'weights', expected 'others'"),
    ],
)
def test_records_made_for_something_else_are_refused(
    tmp_path: Path, taps: tuple[int, ...], top_k: int, weights: str, message: str
) -> None:
    """All of the same shape as the expected ones, or nearly: shapes would not tell."""
    answers, target = tiny_answers(1), TinyTarget()
    Teacher(TinyTarget(), (0, 3), 5, tmp_path).records(answers)
    target.info = dataclasses.replace(target.info, weights_hash=weights)
    with pytest.raises(CompatibilityError, match=message):
        Teacher(target, taps, top_k, tmp_path).records(answers)


def test_a_record_under_the_name_of_other_tokens_is_refused(tmp_path: Path) -> None:
    first, second = tiny_answers(2)
    teacher = Teacher(TinyTarget(), (0, 3), 5, tmp_path)
    teacher.records([first])
    only = next(tmp_path.iterdir())
    only.rename(tmp_path / f"{token_digest(second)}.safetensors")
    with pytest.raises(CompatibilityError, match="tokens"):
        teacher.records([second])


def test_records_belong_to_tokens_whatever_the_answer_is_called(tmp_path: Path) -> None:
    """Ids may hold slashes or repeat; the boundary between prompt and response decides what is taught."""
    answer, target = tiny_answers(1)[0], TinyTarget()
    teacher = Teacher(target, (0, 3), 5, tmp_path)
    teacher.records([dataclasses.replace(answer, id="../up/x")])
    teacher.records([answer])
    assert target.calls == 1
    moved = dataclasses.replace(answer, prompt_ids=answer.token_ids[:5], response_ids=answer.token_ids[5:])
    assert len(teacher.records([moved])[0].ids) == len(answer.response_ids) - 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    answers = tiny_answers(1)
    teacher = Teacher(TinyTarget(), (0, 3), 5, tmp_path)
    teacher.records(answers)
    path = next(tmp_path.iterdir())
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(FormatError, match=f"{path.name} is not a teacher record"):
        teacher.records(answers)


def test_features_come_in_tap_order() -> None:
    answer = tiny_answers(1)
    first = Teacher(TinyTarget(), (0, 3), 5).records(answer)[0].features
    second = Teacher(TinyTarget(), (3,), 5).records(answer)[0].features
    assert first[:, WIDTH:].equal(second)
