"""Records are the same whether computed alone, in a padded batch, or read back from disk."""

import dataclasses
from pathlib import Path

import pytest
import torch

from dspark.core.losses import LossCoefficients
from dspark.data.teacher_record import FeaturePrecision, TeacherRecord
from dspark.errors import CompatibilityError, FormatError
from dspark.training.batches import make_batch
from dspark.training.forced_loss import Objective
from dspark.training.step import evaluate_step
from dspark.training.teacher import Teacher, teacher_store, token_digest
from tests.training.tiny import WIDTH, TinyTarget, tiny_answers, tiny_drafter

PRECISIONS = pytest.mark.parametrize("precision", list(FeaturePrecision))


def keeping(
    directory: Path,
    target: TinyTarget | None = None,
    taps: tuple[int, ...] = (0, 3),
    top_k: int = 5,
    precision: FeaturePrecision = FeaturePrecision.BF16,
) -> Teacher:
    """A teacher that keeps its records in `directory`."""
    target = target or TinyTarget()
    store = teacher_store(directory, target.info, taps, top_k, precision)
    return Teacher(target, taps, top_k, store, precision)


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
    teacher = keeping(tmp_path, target)
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
    keeping(tmp_path).records(answers)
    target.info = dataclasses.replace(target.info, weights_hash=weights)
    with pytest.raises(CompatibilityError, match=message):
        keeping(tmp_path, target, taps, top_k).records(answers)


def test_a_record_under_the_name_of_other_tokens_is_refused(tmp_path: Path) -> None:
    first, second = tiny_answers(2)
    teacher = keeping(tmp_path)
    teacher.records([first])
    only = next(tmp_path.iterdir())
    only.rename(tmp_path / f"{token_digest(second)}.safetensors")
    with pytest.raises(CompatibilityError, match="tokens"):
        teacher.records([second])


def test_records_belong_to_tokens_whatever_the_answer_is_called(tmp_path: Path) -> None:
    """Ids may hold slashes or repeat; the boundary between prompt and response decides what is taught."""
    answer, target = tiny_answers(1)[0], TinyTarget()
    teacher = keeping(tmp_path, target)
    teacher.records([dataclasses.replace(answer, id="../up/x")])
    teacher.records([answer])
    assert target.calls == 1
    moved = dataclasses.replace(answer, prompt_ids=answer.token_ids[:5], response_ids=answer.token_ids[5:])
    assert len(teacher.records([moved])[0].ids) == len(answer.response_ids) - 1
    assert len(list(tmp_path.iterdir())) == 2


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    answers = tiny_answers(1)
    teacher = keeping(tmp_path)
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


@PRECISIONS
@pytest.mark.parametrize("packed", [False, True])
def test_a_store_changes_nothing_that_a_student_sees(tmp_path: Path, precision: FeaturePrecision, packed: bool) -> None:
    """Fresh, just stored, and read back, loose or from a shard: bit for bit the same, fp8 included."""
    answers = tiny_answers(3)
    without = Teacher(TinyTarget(), (0, 3), 5, precision=precision).records(answers)
    teacher = keeping(tmp_path, precision=precision)
    stored = teacher.records(answers)
    if packed:
        assert teacher.store is not None
        teacher.store.pack()
    for records in (stored, keeping(tmp_path, precision=precision).records(answers)):
        for ours, theirs in zip(records, without, strict=True):
            assert ours.features.equal(theirs.features)
            assert ours.ids.equal(theirs.ids)
            assert ours.probabilities.equal(theirs.probabilities)


def spoiled(record: TeacherRecord, feature: int, law: int) -> TeacherRecord:
    """`record` with other features in row `feature` and another law in row `law`."""
    features, probabilities = record.features.clone(), record.probabilities.clone()
    features[feature] += 5.0
    probabilities[law] = 0.01
    return TeacherRecord(features, record.ids, probabilities)


@pytest.mark.parametrize(
    ("feature", "law", "seen"), [(-1, 0, False), (-2, 0, False), (-3, 0, True), (-1, 1, True), (-1, -1, True)]
)
def test_what_is_not_kept_is_what_no_block_reads(feature: int, law: int, seen: bool) -> None:
    """With every possible anchor: rows that are left out change no loss, their neighbours do."""
    answers = tiny_answers(2)
    records = Teacher(TinyTarget(), (0, 3), 31).records(answers)
    drafter = tiny_drafter(rank=0)
    losses = [
        evaluate_step(drafter, make_batch(answers, rows, 1000, 3, None, 0), Objective(LossCoefficients())).loss
        for rows in (records, [spoiled(record, feature, law) for record in records])
    ]
    assert (losses[0] != losses[1]) is seen
