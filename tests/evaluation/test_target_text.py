"""Texts written side by side are those of the loop without a drafter, and their features those of one forward."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dspark.core.sampling import probabilities
from dspark.engine.reference import ReferenceLoop
from dspark.errors import CapacityError, CompatibilityError, ConfigError, FormatError
from dspark.evaluation.decode import PromptDecoder
from dspark.evaluation.prompts import Prompt, PromptSet
from dspark.evaluation.target_text import Question, TargetText, TextWriter
from dspark.evaluation.text_store import TextStore
from dspark.evaluation.write_texts import write_texts
from dspark.targets.native import NativeTarget
from dspark.types import SamplingParams, as_ids
from tests.evaluation.tiny import TAPS, LetterCodec, Letters, native

GREEDY, SAMPLED = SamplingParams(max_tokens=6), SamplingParams(temperature=0.9, top_p=0.9, max_tokens=9, seed=5)
QUESTIONS = [Question(p, params) for p in ((0, 3, 1), (1, 1), (3, 0, 2, 2), (2,)) for params in (GREEDY, SAMPLED)]
STOP = (8, 1)
"""Seed and stop token of a target that ends some of its texts early."""


@pytest.fixture(scope="module")
def target() -> NativeTarget:
    seed, stop = STOP
    return native(4, (stop,), seed)


def writer(target: NativeTarget, taps: tuple[int, ...] = TAPS, overhang: int = 3) -> TextWriter:
    return TextWriter(target, taps, overhang)


def logits_of(target: NativeTarget, text: TargetText) -> Tensor:
    """[n, V] by one forward without a cache."""
    prompt = text.question.prompt_ids
    states = target.states(as_ids((*prompt, *text.token_ids))[None]).last_hidden[0]
    return target.logits(states[len(prompt) - 1 : -1])


def test_texts_are_those_of_the_loop_without_a_drafter(target: NativeTarget) -> None:
    written = list(writer(target).write(QUESTIONS))
    assert {one.text.question for one in written} == set(QUESTIONS)
    reasons = set()
    for one in written:
        question, (output, string) = one.text.question, one.text.output(target.info, Letters())
        expected = ReferenceLoop(target).generate(question.prompt_ids, question.params, Letters())
        assert (tuple(output.token_ids), string) == (expected.token_ids, expected.text)
        assert output.finish_reason == expected.finish_reason
        reasons.add(expected.finish_reason)
    assert reasons == {"stop", "length"}


def test_a_text_goes_on_beyond_its_limit_whatever_it_says(target: NativeTarget) -> None:
    questions = [replace(q, params=replace(q.params, max_tokens=n)) for q in QUESTIONS for n in (1, 3, 6)]
    beyond: set[int] = set()
    for one in writer(target).write(questions):
        question, tokens = one.text.question, one.text.token_ids
        if one.text.output(target.info)[0].finish_reason == "length":
            params = replace(question.params, ignore_eos=True, max_tokens=question.params.max_tokens + 3)
            assert tokens == ReferenceLoop(target).generate(question.prompt_ids, params).token_ids
            beyond.update(tokens[question.params.max_tokens : -1])
        else:
            assert tokens[-1] == STOP[1]
    assert STOP[1] in beyond, "no stop token beyond a limit"


def test_features_and_probabilities_are_those_of_one_forward(target: NativeTarget) -> None:
    for one in writer(target).write(QUESTIONS):
        question = one.text.question
        tokens = as_ids((*question.prompt_ids, *one.text.token_ids[:-1]))
        torch.testing.assert_close(one.features, target.states(tokens[None], taps=TAPS).features[0])
        p = probabilities(logits_of(target, one.text), question.params)
        expected = p.gather(1, as_ids(one.text.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(one.text.probabilities), expected)


@pytest.mark.parametrize(("params", "prompt", "error"), [
    (replace(GREEDY, presence_penalty=1.0), (1,), ConfigError), (replace(GREEDY, stop=("a",)), (1,), ConfigError),
    (replace(GREEDY, temperature=-1.0), (1,), ConfigError), (GREEDY, (), ConfigError),
    (GREEDY, (1,) * 56, CapacityError),
])  # fmt: skip
def test_what_cannot_be_replayed_is_refused(
    target: NativeTarget, params: SamplingParams, prompt: tuple[int, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        list(writer(target).write([Question(prompt, params)]))
    list(writer(target).write([Question((1,) * 55, GREEDY)]))


# The store.


class Counting(TextWriter):
    """Counts what it writes."""

    def write(self, questions):
        COUNTED.extend(questions)
        return super().write(questions)


COUNTED: list[Question] = []


def counting(target: NativeTarget, directory: Path, **options: object) -> TextStore:
    COUNTED.clear()
    return TextStore(directory, Counting(target, TAPS, **{"overhang": 3, **options}))


def test_texts_are_written_once(target: NativeTarget, tmp_path: Path) -> None:
    store = counting(target, tmp_path)
    store.write(QUESTIONS[:3])
    texts = [store.text(question) for question in QUESTIONS]
    assert sorted(map(repr, COUNTED)) == sorted(map(repr, QUESTIONS))
    reopened = counting(target, tmp_path)
    assert [reopened.text(question) for question in QUESTIONS] == texts
    assert not COUNTED


def test_another_target_or_overhang_writes_anew(target: NativeTarget, tmp_path: Path) -> None:
    counting(target, tmp_path).write(QUESTIONS[:1])
    assert counting(native(4, seed=9), tmp_path).find(QUESTIONS[0]) is None
    assert counting(target, tmp_path, overhang=4).find(QUESTIONS[0]) is None
    assert counting(target, tmp_path).find(QUESTIONS[0]) is not None


def test_a_target_without_a_hash_has_no_store(tmp_path: Path) -> None:
    nameless = native(4)
    nameless.info = replace(nameless.info, weights_hash="")
    with pytest.raises(CompatibilityError, match="no hash"):
        counting(nameless, tmp_path)


def test_a_line_cut_short_is_written_again(target: NativeTarget, tmp_path: Path) -> None:
    counting(target, tmp_path).write(QUESTIONS[:2])
    lines = tmp_path / "texts.jsonl"
    lines.write_text(lines.read_text()[:-5])
    counting(target, tmp_path).write(QUESTIONS[:2])
    assert len(COUNTED) == 1
    assert len(lines.read_text().splitlines()) == 2


def test_other_files_are_no_stores(target: NativeTarget, tmp_path: Path) -> None:
    (tmp_path / "texts.jsonl").write_text('{"key": "1"}\n')
    with pytest.raises(FormatError, match="not a store of texts"):
        counting(target, tmp_path)


@pytest.mark.parametrize("taps", [TAPS, (0,)])
def test_features_that_are_missing_are_computed(target: NativeTarget, taps: tuple[int, ...], tmp_path: Path) -> None:
    store = counting(target, tmp_path)
    for text in map(store.text, QUESTIONS[:2]):
        for file in (tmp_path / "features").iterdir():
            file.unlink()
        tokens = as_ids((*text.question.prompt_ids, *text.token_ids[:-1]))
        expected = target.states(tokens[None], taps=taps).features[0]
        torch.testing.assert_close(store.features(text, taps), expected)
        torch.testing.assert_close(store.features(text, taps), expected)
        assert len(list((tmp_path / "features").iterdir())) == 1


@pytest.mark.parametrize("question", QUESTIONS[:2])
def test_a_text_that_the_target_would_not_write_is_noticed(
    target: NativeTarget, question: Question, tmp_path: Path
) -> None:
    text = counting(target, tmp_path).text(question)
    changed = (text.token_ids[0] + 1) % 4
    forged = replace(text, token_ids=(changed, *text.token_ids[1:]))
    with pytest.raises(CompatibilityError, match="not what tiny writes"):
        writer(target).read_again(forged, TAPS)


def test_unreadable_features_are_named(target: NativeTarget, tmp_path: Path) -> None:
    store = counting(target, tmp_path)
    text = store.text(QUESTIONS[0])
    (file,) = (tmp_path / "features").iterdir()
    file.write_bytes(b"nothing")
    with pytest.raises(FormatError, match=file.name):
        store.features(text, TAPS)


# Whole prompt sets.


def test_an_evaluation_finds_all_its_texts(target: NativeTarget, tmp_path: Path) -> None:
    sets = [PromptSet("one", (Prompt("a", "", ("ab", "c", "d")), Prompt("b", "", ("dd",)))),
            PromptSet("two", (Prompt("c", "", ("abc",)),))]  # fmt: skip
    codec, store = LetterCodec(4), counting(target, tmp_path)
    write_texts(store, codec, sets, [GREEDY, SAMPLED], seed=7)
    assert len(COUNTED) == 10
    COUNTED.clear()
    asked = []

    class Asking(ReferenceLoop):
        def generate(self, prompt_ids, params, detokeniser=None, observer=None):
            asked.append(store.text(Question(tuple(prompt_ids), params)))
            return super().generate(prompt_ids, params, detokeniser)

    for params in (GREEDY, SAMPLED):
        for prompts in sets:
            for index, prompt in enumerate(prompts.prompts):
                PromptDecoder(Asking(target), codec, params)(prompt, 7 + index)
    assert len(asked) == 10
    assert not COUNTED, "the evaluation asks for a text that was not written ahead"
