"""Whatever interrupts it, a regeneration that goes on ends with the very file of one that was never stopped."""

import errno
import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspark.data import answer_file
from dspark.data.answer_file import AnswerFile, ErrorFile
from dspark.data.answer_row import Provenance
from dspark.data.answer_source import SamplingSettings
from dspark.data.answers import read_answers
from dspark.data.conversation import Conversation
from dspark.data.regenerate import RegenerateReport, Regeneration, answer_seed
from dspark.errors import CompatibilityError, EndpointError, FormatError
from tests.data.small import RuleSource, answer, conversations, transcriber

CHATS = conversations(10)
WRITER = transcriber()
PROVENANCE = Provenance("m", WRITER.template_hash, False, 3, SamplingSettings(temperature=0.7))


def run(path: Path, source: RuleSource, chats=CHATS, provenance: Provenance = PROVENANCE) -> RegenerateReport:
    file = AnswerFile(path, provenance.as_json())
    return Regeneration(chats, WRITER, provenance, file, ErrorFile(path)).run(source)


def rows(path: Path) -> list[dict]:
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "a.jsonl"
    assert run(path, RuleSource()).finished
    return path.read_bytes()


def test_answers_stand_in_the_order_of_the_prompts_and_train_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    report = run(path, RuleSource())
    found = rows(path)
    order = [chat.answer_id(turn) for chat in CHATS for turn in range(len(chat.turns))]
    assert [row["id"] for row in found] == [name for name in order if name in {row["id"] for row in found}]
    assert report.answers == report.new == len(found) == len(read_answers(path))
    assert report.truncated == sum(row["finish_reason"] == "length" for row in found) > 0
    assert not list(tmp_path.glob("*.partial*"))
    for row in found:
        assert (row["response_ids"][-1] == WRITER.end_id) == (row["finish_reason"] == "stop")
        assert row["template_hash"] == WRITER.template_hash
        assert (row["thinking"], row["temperature"], row["model"]) == (False, 0.7, "m")


def test_a_turn_is_answered_after_the_targets_own_answers(tmp_path: Path) -> None:
    source = RuleSource()
    run(tmp_path / "a.jsonl", source)
    later = [question for question in source.asked if question.turn > 0]
    assert later
    by_id = {row["id"]: row for row in rows(tmp_path / "a.jsonl")}
    for question in later:
        before = by_id[CHATS[question.index].answer_id(question.turn - 1)]
        assert question.messages[-2].content == before["response"]
        assert before["finish_reason"] == "stop", "nothing follows an answer that was cut"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), EndpointError("dead."), RuntimeError("bug")])
@settings(max_examples=20)
@given(stops=st.lists(st.integers(0, 4), min_size=1, max_size=3), cut=st.integers(0, 30))
def test_a_resumed_file_is_that_of_one_run(tmp_path_factory, request, error, stops: list[int], cut: int) -> None:
    whole = request.getfixturevalue("whole")
    path = tmp_path_factory.mktemp("resumed") / "a.jsonl"
    asked = 0
    for patience in stops:
        source = RuleSource(patience, error)
        if isinstance(error, KeyboardInterrupt):
            assert run(path, source).interrupted
        else:
            with pytest.raises(type(error)):
                run(path, source)
        asked += len(source.asked)
        if isinstance(error, RuntimeError):  # as a kill does: the journal remains, its last line perhaps in part
            journal = path.with_name("a.jsonl.partial")
            lines = journal.read_bytes() if journal.exists() else b""
            if lines.endswith(b"\n") and cut and lines.count(b"\n") > 1:
                journal.write_bytes(lines[:-cut])
                asked -= 1
        else:
            assert (len(rows(path)) if path.exists() else 0) == asked
    last = RuleSource()
    assert run(path, last).finished
    assert path.read_bytes() == whole
    assert asked + len(last.asked) == whole.count(b"\n"), "an answer was asked for twice"


def test_failures_are_kept_apart_and_asked_again(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.jsonl"
    refused = frozenset({CHATS[0].turns[0], CHATS[4].turns[0]})
    report = run(path, RuleSource(refused=refused))
    assert (report.failed, report.finished, report.interrupted) == (2, False, False)
    errors = rows(tmp_path / "a.errors.jsonl")
    assert sorted(errors, key=lambda row: row["id"]) == [
        {"id": "c0/1", "error": "refused", "attempts": 3},
        {"id": "c4", "error": "refused", "attempts": 3},
    ]
    assert run(path, RuleSource()).finished
    assert path.read_bytes() == whole
    assert not (tmp_path / "a.errors.jsonl").exists()


def test_an_unusable_answer_is_a_failure_of_its_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tests.data.small.answer", lambda prompt, seed: ("a<|im_end|>b", "stop"))
    report = run(tmp_path / "a.jsonl", RuleSource(), CHATS[1:2])
    assert (report.failed, report.answers) == (1, 0)
    assert "spells" in rows(tmp_path / "a.errors.jsonl")[0]["error"]


def test_a_finished_file_asks_nothing_and_stays(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(whole)
    before = path.stat().st_ino
    source = RuleSource()
    report = run(path, source)
    assert (source.asked, report.new, report.finished) == ([], 0, True)
    assert path.stat().st_ino == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_prompts_may_be_added_and_left_out(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.jsonl"
    run(path, RuleSource(), CHATS[5:])
    run(path, RuleSource(), CHATS[:2])
    assert {row["id"] for row in rows(path)} >= {"c1", "c5", "c7"}, "answers to prompts left out must stay"
    run(path, RuleSource())
    assert path.read_bytes() == whole


def test_seeds_depend_on_the_prompt_and_not_on_its_place(tmp_path: Path) -> None:
    source = RuleSource()
    run(tmp_path / "a.jsonl", source)
    seeds = {CHATS[q.index].answer_id(q.turn): q.seed for q in source.asked}
    assert seeds == {name: answer_seed(3, name) for name in seeds}
    assert len(set(seeds.values())) == len(seeds)
    assert max(seeds.values()) < 2**31


@pytest.mark.parametrize(
    ("provenance", "field"),
    [
        (replace(PROVENANCE, template_hash="f" * 16), "template_hash"),
        (replace(PROVENANCE, thinking=True), "thinking"),
        (replace(PROVENANCE, settings=SamplingSettings(temperature=1.0)), "temperature 0.7, this run has 1.0"),
        (replace(PROVENANCE, seed=4), "run_seed"),
    ],
)
def test_other_settings_are_not_mixed_in(tmp_path: Path, whole: bytes, provenance: Provenance, field: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(whole)
    with pytest.raises(CompatibilityError, match=f"a.jsonl holds answers with {field}"):
        run(path, RuleSource(), provenance=provenance)
    assert path.read_bytes() == whole


def test_other_words_under_a_known_id_are_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(whole)
    with pytest.raises(CompatibilityError, match="'c1' to other words"):
        run(path, RuleSource(), [Conversation("c1", "math", ("Something else",))])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("text", ['{"id": "a"}\n', "nothing\n", "[1]\n"])
def test_other_files_are_refused_with_their_line(tmp_path: Path, whole: bytes, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(whole[: whole.index(b"\n") + 1] + text.encode())
    with pytest.raises(FormatError, match="a.jsonl, line 2 is no regenerated answer"):
        run(path, RuleSource())


def test_a_broken_gzip_is_refused(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "a.jsonl.gz"
    for content in (gzip.compress(whole)[:-20], b"no gzip at all"):
        path.write_bytes(content)
        with pytest.raises(FormatError, match="cannot be decompressed"):
            run(path, RuleSource())
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl.gz"]


@pytest.mark.parametrize("written", [0, 3, 5])
def test_a_full_disk_is_named_and_what_was_written_stays(
    tmp_path: Path, whole: bytes, monkeypatch, written: int
) -> None:
    path = tmp_path / "a.jsonl"
    real, left = answer_file._write_all, [written]

    def full(stream, line):
        if left[0] == 0:
            stream.write(line[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        real(stream, line)

    monkeypatch.setattr(answer_file, "_write_all", full)
    with pytest.raises(OSError, match="No space left") as error:
        run(path, RuleSource())
    assert error.value.filename == str(tmp_path / "a.jsonl.partial")
    monkeypatch.setattr(answer_file, "_write_all", real)
    last = RuleSource()
    run(path, last)
    assert path.read_bytes() == whole
    assert len(last.asked) == whole.count(b"\n") - written


def test_a_disk_that_fills_while_arranging_loses_nothing(tmp_path: Path, whole: bytes, monkeypatch) -> None:
    path = tmp_path / "a.jsonl"
    run(path, RuleSource(3, KeyboardInterrupt()))
    before = path.read_bytes()

    class Full:
        def __enter__(self):
            raise OSError(errno.ENOSPC, "No space left on device")

        def __exit__(self, *error):
            return None

    with monkeypatch.context() as patch:
        patch.setattr(answer_file, "_binary_writer", lambda path, compressed: Full())
        with pytest.raises(OSError, match="No space left"):
            run(path, RuleSource())
    assert path.read_bytes() == before
    source = RuleSource()
    run(path, source)
    assert source.asked == []
    assert path.read_bytes() == whole


def test_a_dead_endpoint_says_what_is_kept(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match=r"^dead. 3 answers are kept in .*a.jsonl; the same command goes on$"):
        run(tmp_path / "a.jsonl", RuleSource(3, EndpointError("dead.")))


def test_the_rule_of_these_tests_cuts_some_answers() -> None:
    assert {answer(str(i), i)[1] for i in range(20)} == {"stop", "length"}
