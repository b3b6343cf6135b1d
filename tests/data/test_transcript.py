"""The loss mask: which tokens are the answer's, and when an end token belongs to it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.data.chat import Message, user_turn
from dspark.data.transcript import Transcriber
from dspark.errors import ConfigError, FormatError
from tests.data.small import TEMPLATE, tokenizer

CROSSING = (("Ċ", "T"), ("T", "h"))
"""A newline and the first letter of an answer are one token: the merge crosses the boundary of prompt and answer."""


@pytest.fixture(scope="module")
def plain() -> Transcriber:
    return Transcriber(tokenizer())


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30), finished=st.booleans())
def test_cutting_by_offsets_gives_back_prompt_and_answer(plain: Transcriber, text: str, finished: bool) -> None:
    prompt = plain.render(user_turn("Hi é"))
    tokens = plain.from_text(prompt, text, finished=finished)
    assert tokens.prompt_ids == prompt.token_ids
    assert plain.decode(tokens.response_ids) == (text if finished else text.rstrip("\ufffd"))
    assert tokens.response_ids.count(plain.end_id) == finished


def test_a_token_that_spans_the_boundary_is_not_supervised() -> None:
    names = tokenizer(TEMPLATE, *CROSSING, split=False)
    crossing = Transcriber(names)
    prompt = crossing.render(user_turn("Hi"))
    tokens = crossing.from_text(prompt, "The end", finished=True)
    straddling = names.token_id("ĊT")
    assert tokens.prompt_ids == (*prompt.token_ids[:-1], straddling)
    assert crossing.decode(tokens.response_ids) == "he end"
    whole = names.encode(f"{prompt.text}The end<|im_end|>")
    assert [*tokens.prompt_ids, *tokens.response_ids] == whole


def test_the_first_token_of_an_answer_is_what_it_is_in_context() -> None:
    """Encoding the answer alone would begin it with a word's space that the text does not have."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as RawTokenizer

    from dspark.targets.tokenizer import SpecialTokens, Tokenizer

    letters = {letter: i for i, letter in enumerate("▁abcusert\n:")}
    raw = RawTokenizer(models.BPE(vocab=letters, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    raw.decoder = decoders.Metaspace()
    raw.add_special_tokens([AddedToken("</s>", special=True)])
    template = "{{ messages[0].content }}:{% if messages | length > 1 %}{{ messages[1].content }}</s>{% endif %}"
    words = Transcriber(Tokenizer(raw, SpecialTokens(eos="</s>"), template))
    tokens = words.from_text(words.render(user_turn("a")), "b", finished=True)
    assert tokens.response_ids == (letters["b"], words.end_id)


def test_an_unfinished_answer_gets_no_end_and_loses_half_a_character(plain: Transcriber) -> None:
    prompt = plain.render(user_turn("Hi"))
    assert plain.from_text(prompt, "ab\ufffd", finished=False) == plain.from_text(prompt, "ab", finished=False)
    assert plain.end_id not in plain.from_text(prompt, "ab", finished=False).response_ids


@pytest.mark.parametrize("text", ["a<|im_end|>b", "a<|im_end|>"])
@pytest.mark.parametrize("finished", [True, False])
def test_an_answer_that_spells_the_end_token_is_refused(plain: Transcriber, text: str, finished: bool) -> None:
    with pytest.raises(FormatError, match="spells '<.im_end.>'"):
        plain.from_text(plain.render(user_turn("Hi")), text, finished=finished)


def test_half_a_character_of_utf_16_is_refused(plain: Transcriber) -> None:
    with pytest.raises(FormatError, match="no Unicode"):
        plain.from_text(plain.render(user_turn("Hi")), "\ud83d", finished=True)


def test_exact_ids_are_kept_and_closed_only_if_they_ended(plain: Transcriber) -> None:
    prompt = plain.render(user_turn("Hi"))
    end, other_end = plain.end_id, plain.end_id + 1
    for ids, finished, expected in [
        ((5, 6), True, (5, 6, end)), ((5, end), True, (5, end)), ((5, other_end), True, (5, other_end)),
        ((5, 6), False, (5, 6)), ((), True, (end,)),
    ]:  # fmt: skip
        assert plain.from_ids(prompt, ids, finished=finished).response_ids == expected
    with pytest.raises(FormatError, match="token id 99999"):
        plain.from_ids(prompt, (99999,), finished=True)


def test_the_end_token_is_the_templates_else_the_tokenizers() -> None:
    names = tokenizer()
    assert Transcriber(names).end_id == names.token_id("<|im_end|>")
    bare = tokenizer("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    assert Transcriber(bare).end_id == bare.token_id("<|eos|>")
    bare.special = type(bare.special)()
    with pytest.raises(ConfigError, match="names a token that ends"):
        Transcriber(bare)
    with pytest.raises(ConfigError, match="no chat template"):
        Transcriber(tokenizer(None))


def test_thinking_reaches_the_template_and_the_hash_is_the_targets() -> None:
    chat = [Message("user", "Hi")]
    assert Transcriber(tokenizer(), thinking=True).render(chat).text.endswith("assistant\n<think>\n")
    assert Transcriber(tokenizer()).render(chat).text.endswith("assistant\n")
    assert len(Transcriber(tokenizer()).template_hash) == 16
