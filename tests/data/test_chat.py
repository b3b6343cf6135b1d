"""One template function: the embedded target's template renders what its training answers were prompted with."""

import pytest

from dspark.data.chat import ChatTemplate, Message, user_turn
from dspark.errors import ConfigError, FormatError

CHATML = ChatTemplate(
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_renders_turns_and_opens_the_answer() -> None:
    text = CHATML.render(user_turn("Hi", system="Be brief"))
    assert text == ("<|im_start|>system\nBe brief<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_closed_chats_do_not_open_an_answer() -> None:
    assert CHATML.render([Message("user", "Hi")], add_generation_prompt=False).endswith("Hi<|im_end|>\n")


def test_content_is_never_executed_as_template() -> None:
    assert "{{ 7 * 7 }}" in CHATML.render(user_turn("{{ 7 * 7 }}"))


def test_templates_cannot_reach_python() -> None:
    with pytest.raises(ConfigError, match="refuses"):
        ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}").render(user_turn("Hi"))


def test_a_template_may_refuse_and_its_reason_is_shown() -> None:
    with pytest.raises(ConfigError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(user_turn("Hi"))


def test_broken_templates_and_empty_chats() -> None:
    with pytest.raises(FormatError, match="cannot be compiled"):
        ChatTemplate("{% if %}").render(user_turn("Hi"))
    with pytest.raises(ConfigError, match="at least one message"):
        CHATML.render([])
