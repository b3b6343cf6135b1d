"""Rows of public data sets become conversations without their answers."""

import pytest

from dspark.data.chat import Message
from dspark.data.conversation import Conversation, parse_conversation
from dspark.errors import FormatError

LOG = [("system", "S"), ("human", "a"), ("gpt", "x"), ("user", "b"), ("assistant", "y")]


@pytest.mark.parametrize(
    ("row", "turns", "system"),
    [
        ({"turns": ["a", "b"]}, ("a", "b"), None),
        ({"prompt": "a", "system": "S"}, ("a",), "S"),
        ({"messages": [{"role": role, "content": text} for role, text in LOG]}, ("a", "b"), "S"),
        ({"conversations": [{"from": role, "value": text} for role, text in LOG]}, ("a", "b"), "S"),
    ],
)
def test_every_spelling_is_read(row: dict, turns: tuple[str, ...], system: str | None) -> None:
    assert parse_conversation(row, "f, line 1", "f-1") == Conversation("f-1", "", turns, system)
    named = parse_conversation({**row, "id": 7, "domain": "math"}, "f, line 1", "f-1")
    assert (named.id, named.domain) == ("7", "math")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({}, "line 3: expected `turns`"),
        ({"turns": []}, "line 3"),
        ({"prompt": "  "}, "line 3"),
        ({"turns": ["a", 1]}, "line 3"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "line 3"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "role 'tool'"),
        ({"messages": ["x"]}, "role None"),
        ({"prompt": "\ud83d"}, "half a character"),
    ],
)
def test_rows_without_a_question_are_named(row: dict, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        parse_conversation(row, "f, line 3", "f-3")


def test_later_turns_stand_behind_earlier_answers() -> None:
    chat = Conversation("c", "", ("a", "b"), "S").messages(["x"])
    assert chat == (Message("system", "S"), Message("user", "a"), Message("assistant", "x"), Message("user", "b"))


def test_ids_and_digests_tell_turns_and_words_apart() -> None:
    one, two = Conversation("c", "", ("a",)), Conversation("c", "", ("a", "b"))
    assert (one.answer_id(0), two.answer_id(0), two.answer_id(1)) == ("c", "c/1", "c/2")
    assert len({one.digest, two.digest, Conversation("c", "", ("a",), "S").digest}) == 3
