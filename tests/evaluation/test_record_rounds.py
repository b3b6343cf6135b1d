"""Recording prompt by prompt: seeds, what an interruption keeps, and that a resumed run ends like one that was not."""

import numpy as np
import pytest

from dspark.calibration.records import RoundRecords
from dspark.calibration.shards import RecordStore, shard_paths
from dspark.evaluation.prompts import Prompt, PromptSet
from dspark.evaluation.record_rounds import prompt_key, record_rounds
from tests.calibration.rounds import records

SETTINGS = {"temperature": 1.0}
A, B, C = (Prompt(name, "", (f"{name}?",)) for name in "abc")
SHARED = Prompt("shared", "", ("In both sets?",))
SAME = Prompt("again", "chat", SHARED.turns)
SETS = (PromptSet("math", (A, SHARED, B)), PromptSet("code", (SHARED, C)), PromptSet("chat", (SHARED, SAME)))


class Decoder:
    """Stands for a model: two rounds of each prompt that differ by its seed; stops when `limit` prompts are done."""

    def __init__(self, limit: int = 100, empty: tuple[Prompt, ...] = ()) -> None:
        self.limit, self.empty = limit, empty
        self.asked: list[tuple[str, str, int]] = []

    def __call__(self, prompt: Prompt, set_name: str, seed: int) -> RoundRecords:
        if len(self.asked) == self.limit:
            raise KeyboardInterrupt
        self.asked.append((prompt.id, set_name, seed))
        number, domain = prompt_key(prompt, set_name)
        request = np.full(2, number, dtype=np.uint64)
        rounds = records([seed % 4, 1], position=np.array([1, 5]), request=request, domain=np.full(2, domain))
        return rounds.take(np.arange(0 if prompt in self.empty else 2))


def same(a: RoundRecords, b: RoundRecords) -> None:
    for name, value in a.arrays().items():
        np.testing.assert_array_equal(getattr(b, name), value, err_msg=name)


def test_prompt_i_of_a_set_is_sampled_with_seed_plus_i():
    decode = Decoder()
    record_rounds(decode, SETS[:2], seed=10)
    assert decode.asked == [
        ("a", "math", 10),
        ("shared", "math", 11),
        ("b", "math", 12),
        ("shared", "code", 10),
        ("c", "code", 11),
    ]


def test_a_prompt_is_decoded_once_in_each_domain():
    decode, told = Decoder(), []
    found = record_rounds(decode, SETS, watch=lambda name, rounds: told.append((name, rounds)))
    assert [one[:2] for one in decode.asked if one[0] in ("shared", "again")] == [
        ("shared", "math"),
        ("shared", "code"),
        ("shared", "chat"),  # and not `again`, the same words in the same domain
    ]
    assert len(found) == 2 * 6
    assert told == [("math", 2)] * 3 + [("code", 2)] * 2 + [("chat", 2), ("chat", 0)]


@pytest.mark.parametrize("finished", range(7))
def test_an_interrupted_run_keeps_what_is_finished_and_ends_as_if_it_had_not_been(tmp_path, finished):
    """Catches a buffer that is lost with the interruption, and a prompt of two sets that is skipped on resumption."""
    store, stopped, resumed = RecordStore(tmp_path, SETTINGS), Decoder(finished), Decoder()
    whole = record_rounds(Decoder(), SETS, seed=3)
    if finished < 6:
        with pytest.raises(KeyboardInterrupt):
            record_rounds(stopped, SETS, store, seed=3, clock=lambda: 0.0)  # never half a minute: only the end writes
    else:
        record_rounds(stopped, SETS, store, seed=3, clock=lambda: 0.0)
    assert len(shard_paths(tmp_path)) == (finished > 0)
    if finished:
        same(store.read(), whole.take(np.arange(2 * finished)))
    same(record_rounds(resumed, SETS, RecordStore(tmp_path, SETTINGS), seed=3), whole)
    assert len(resumed.asked) == 6 - finished


def test_finished_prompts_are_written_while_others_are_decoded(tmp_path):
    """Catches rounds that only the end would write: a kill without warning would cost them all."""
    store, times, written = RecordStore(tmp_path, SETTINGS), iter(range(0, 1000, 20)), []
    record_rounds(
        Decoder(),
        SETS,
        store,
        watch=lambda name, rounds: written.append(len(shard_paths(tmp_path))),
        clock=lambda: float(next(times)),
    )
    assert written[0] == 0
    assert 1 < written[-1] < 6


def test_a_prompt_without_rounds_is_asked_again_and_adds_nothing(tmp_path):
    store, again = RecordStore(tmp_path, SETTINGS), Decoder(empty=(B,))
    first = record_rounds(Decoder(empty=(B,)), SETS[:1], store)
    same(record_rounds(again, SETS[:1], store), first)
    assert [one[0] for one in again.asked] == ["b"]


def test_rounds_of_other_prompts_in_the_store_are_left_there(tmp_path):
    store = RecordStore(tmp_path, SETTINGS)
    record_rounds(Decoder(), SETS, store)
    found = record_rounds(Decoder(limit=0), SETS[1:2], store)
    assert set(found.origins()) == {prompt_key(prompt, "code") for prompt in SETS[1].prompts}
