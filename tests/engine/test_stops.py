"""Where a text ends, and what a stream may show before it is known."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.engine.result import Commit
from dspark.engine.stops import Output, StopScanner
from dspark.errors import ConfigError


class Letters:
    """Token n is the n-th letter; `held` letters wait for the next token, as bytes of a character do."""

    def __init__(self, held: str = "") -> None:
        self._held, self._waiting = held, ""

    def push(self, token: int) -> str:
        text, self._waiting = self._waiting + "abcdefgh"[token], ""
        if text[-1] in self._held:
            text, self._waiting = text[:-1], text[-1]
        return text

    def flush(self) -> str:
        return self._waiting


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
def test_scanner_shows_all_before_the_first_stop_and_never_more(pieces: list[str], stops: list[str]) -> None:
    scanner, shown, text = StopScanner(stops), "", "".join(pieces)
    for piece in pieces:
        shown += scanner.push(piece)
        assert text.startswith(shown)
        if scanner.found:
            break
    else:
        shown += scanner.flush()
    # What ends earliest in time ends the text; of those, the one that begins first.
    read = next((n for n in range(len(pieces) + 1) if any(s in "".join(pieces[:n]) for s in stops)), None)
    if read is None:
        assert (shown, scanner.found) == (text, False)
    else:
        seen = "".join(pieces[:read])
        assert (shown, scanner.found) == (seen[: min(seen.find(s) for s in stops if s in seen)], True)


def test_scanner_holds_back_no_more_than_needed() -> None:
    scanner = StopScanner(["END"])
    assert [scanner.push(piece) for piece in ("a", "bE", "N", "Ex", "EN")] == ["a", "b", "", "ENEx", ""]
    assert scanner.flush() == "EN"


def output(limit: int = 9, ids: tuple[int, ...] = (), stops: tuple[str, ...] = (), held: str = "") -> Output:
    return Output(limit, ids, stops, Letters(held))


def test_tokens_after_a_stop_token_are_dropped_and_it_has_no_text() -> None:
    out = output(ids=(3,))
    assert out.take([0, 1]) == Commit((0, 1), "ab")
    assert out.finish_reason is None
    assert out.take([2, 3, 4]) == Commit((2, 3), "c")
    assert (out.finish_reason, out.ended_by_token, out.token_ids) == ("stop", True, [0, 1, 2, 3])


def test_tokens_after_a_stop_string_are_dropped_and_it_has_no_text() -> None:
    out = output(stops=("bc",))
    assert [out.take([token]).text for token in (0, 1)] == ["a", ""]
    assert out.take([2, 3]) == Commit((2,), "")
    assert (out.finish_reason, out.ended_by_token) == ("stop", False)


def test_limit_ends_the_text_and_releases_what_was_held_back() -> None:
    out = output(limit=3, stops=("cd",), held="c")
    assert out.take([0, 1, 2, 3]) == Commit((0, 1, 2), "abc")
    assert out.finish_reason == "length"


def test_stop_token_at_the_limit_is_a_stop() -> None:
    out = output(limit=2, ids=(1,))
    out.take([0, 1])
    assert out.finish_reason == "stop"


def test_stop_string_that_only_the_last_flush_completes() -> None:
    out = output(limit=3, stops=("bc",), held="c")
    assert out.take([0, 1, 2]).text == "a"


def test_without_detokeniser_there_is_no_text_and_no_stop_string() -> None:
    out = Output(5, (), (), None)
    assert out.take([0, 1]) == Commit((0, 1), "")
    with pytest.raises(ConfigError, match=r"stop is \('x',\), but there is no detokeniser"):
        Output(5, (), ("x",), None)
