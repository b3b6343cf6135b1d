"""Order and anchors are pure functions of (seed, step); labels, teacher rows and masks line up with the tokens."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dspark.training.batches import batch_indices, draft_teacher, draw_anchors, gather_batch, make_batch, taught_tokens
from dspark.training.teacher import Teacher
from tests.training.tiny import TinyTarget, tiny_answers

ANSWERS = tiny_answers()
RECORDS = Teacher(TinyTarget(), (0, 3), 31).records(ANSWERS)


@given(count=st.integers(4, 200), per_step=st.integers(1, 4), seed=st.integers(0, 5), epoch=st.integers(0, 3))
def test_an_epoch_visits_no_answer_twice(count: int, per_step: int, seed: int, epoch: int) -> None:
    lengths = [(7 * i) % 31 for i in range(count)]
    steps = count // per_step
    seen = [i for s in range(steps) for i in batch_indices(count, per_step, lengths, seed, epoch * steps + s)]
    assert len(seen) == len(set(seen)) == steps * per_step


def test_epochs_differ_and_steps_repeat() -> None:
    lengths = [1] * 40
    first = [batch_indices(40, 4, lengths, 1, s) for s in range(10)]
    assert first == [batch_indices(40, 4, lengths, 1, s) for s in range(10)]
    assert first != [batch_indices(40, 4, lengths, 1, s) for s in range(10, 20)]


def test_anchors_are_response_tokens_followed_by_a_response_token() -> None:
    batch = make_batch(ANSWERS, RECORDS, 1000, 3, None, 0)
    start = 0
    expected: list[int] = []
    for answer in ANSWERS:
        expected += range(start + len(answer.prompt_ids), start + len(answer.token_ids) - 1)
        start += len(answer.token_ids)
    assert batch.anchors.tolist() == expected


def test_slots_teach_the_distribution_of_the_token_after_them() -> None:
    """Slot k of anchor a is taught p_t of position a + k + 1: row a + k + 1 - P of the record."""
    answer, record = ANSWERS[0], RECORDS[0]
    batch = make_batch([answer], [record], 1000, 3, None, 0)
    row = 0
    for index, anchor in enumerate(batch.anchors.tolist()):
        for k in range(3):
            label = anchor + k + 1
            assert bool(batch.supervised[index, k]) == (label < len(answer.token_ids))
            if batch.supervised[index, k]:
                assert int(batch.previous[index, k]) == answer.token_ids[label - 1]
                assert batch.teacher.ids[row].tolist() == record.ids[label - len(answer.prompt_ids)].tolist()
                assert int(batch.slots[row]) == k
                row += 1
    assert row == len(batch.slots)


def test_the_teacher_row_is_the_targets_own_law_after_the_prefix() -> None:
    """Not shifted: row j must equal softmax of the logits at the token before response token j. Row 0 is not kept."""
    target, answer, record = TinyTarget(), ANSWERS[0], RECORDS[0]
    for j in (1, 2, len(answer.response_ids) - 1):
        prefix = torch.tensor([answer.token_ids[: len(answer.prompt_ids) + j]])
        p_t = torch.softmax(
            target.logits(target.states(prefix, torch.tensor([prefix.shape[1]]), (0,)).last_hidden[0, -1]), -1
        )
        dense = torch.zeros(31).scatter(0, record.ids[j].long(), record.probabilities[j].float())
        torch.testing.assert_close(dense, p_t, atol=2e-3, rtol=0)


def test_packed_documents_do_not_share_anchors_or_labels() -> None:
    """What document 1 teaches is the same whether or not document 2 is packed behind it."""
    alone = make_batch(ANSWERS[:1], RECORDS[:1], 1000, 3, None, 0)
    packed = make_batch(ANSWERS[:2], RECORDS[:2], 1000, 3, None, 0)
    count, slots = len(alone.anchors), len(alone.slots)
    assert packed.anchors[:count].tolist() == alone.anchors.tolist()
    assert packed.supervised[:count].equal(alone.supervised)
    assert packed.teacher.ids[:slots].equal(alone.teacher.ids)


def test_pruned_teacher_keeps_exact_probabilities_inside_and_drops_the_rest() -> None:
    index = torch.tensor([-1, 0, -1, 1])
    teacher = draft_teacher(torch.tensor([[3, 0, 1]]), torch.tensor([[0.5, 0.3, 0.2]]), index)
    assert teacher.ids.tolist() == [[1, 0, 0]]
    torch.testing.assert_close(teacher.probabilities, torch.tensor([[0.5, 0.0, 0.2]]))


def test_laws_of_taught_tokens_alone_make_the_same_batch() -> None:
    answers, teacher = tiny_answers(3), Teacher(TinyTarget(), (0, 3), 31)
    places = draw_anchors(answers, 4, 0)
    wanted = [taught_tokens(answer, own, 2) for answer, own in zip(answers, places, strict=True)]
    whole = gather_batch(answers, teacher.records(answers), places, 2, None)
    part = gather_batch(answers, teacher.records(answers, wanted), places, 2, None)
    assert part.teacher.ids.equal(whole.teacher.ids)
    torch.testing.assert_close(part.teacher.probabilities, whole.teacher.probabilities)


def test_a_token_without_a_law_is_not_taught_in_silence() -> None:
    answers, teacher = tiny_answers(2), Teacher(TinyTarget(), (0, 3), 31)
    places = draw_anchors(answers, 4, 0)
    wanted = [taught_tokens(answer, own, 2)[1:] for answer, own in zip(answers, places, strict=True)]
    batch = gather_batch(answers, teacher.records(answers, wanted), places, 2, None)
    assert batch.teacher.probabilities.isnan().any(-1).sum() >= len(answers)
