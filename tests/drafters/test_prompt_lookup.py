"""Copies follow the latest earlier match, go around loops, and never reach beyond the room."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.drafters.prompt_lookup import LookupIndex, PromptLookup
from dspark.errors import ConfigError


def proposed(tokens: list[int], drafts: int, match: int, room: int = 99) -> list[int]:
    return LookupIndex(PromptLookup(drafts, match), tokens).propose(room)


def by_search(tokens: list[int], drafts: int, match: int, room: int) -> list[int]:
    """The rule in plain words: the latest earlier place, then one token after another."""
    key = tokens[-match:]
    places = [i for i in range(len(tokens) - match) if tokens[i : i + match] == key]
    if len(tokens) < match or not places:
        return []
    text, source = list(tokens), places[-1] + match
    for place in range(source, source + min(drafts, room)):
        text.append(text[place])
    return text[len(tokens) :]


def test_what_followed_is_drafted() -> None:
    assert proposed([1, 2, 3, 4, 5, 1, 2, 3], drafts=2, match=3) == [4, 5]


def test_the_latest_match_counts() -> None:
    assert proposed([1, 2, 7, 1, 2, 8, 1, 2], drafts=1, match=2) == [8]


def test_a_loop_is_followed_around() -> None:
    assert proposed([5, 6, 5, 6], drafts=5, match=2) == [5, 6, 5, 6, 5]


def test_nothing_without_a_match_or_room() -> None:
    assert proposed([1, 2, 3], drafts=2, match=1) == []
    assert proposed([1, 2], drafts=2, match=3) == []
    assert proposed([1, 1, 1], drafts=3, match=1, room=0) == []


@given(
    st.lists(st.integers(0, 2), max_size=24),
    st.integers(1, 4), st.integers(1, 3), st.integers(0, 5), st.integers(0, 24),
)  # fmt: skip
def test_like_a_search_however_the_tokens_arrive(
    tokens: list[int], drafts: int, match: int, room: int, split: int
) -> None:
    index = LookupIndex(PromptLookup(drafts, match), tokens[:split])
    for token in tokens[split:]:
        index.append([token])
    assert index.propose(room) == by_search(tokens, drafts, match, room)


@pytest.mark.parametrize("wrong", [{"drafts": 0}, {"match": 0}])
def test_lengths_below_one_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is 0; expected 1 token or more"):
        PromptLookup(**wrong)
