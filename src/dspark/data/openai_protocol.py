"""The two calls of the OpenAI protocol that write answers: what is sent, and what comes back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dspark.data.answer_source import Question, Reply, SamplingSettings
from dspark.data.transcript import Transcriber
from dspark.errors import CompatibilityError, FormatError

Api = Literal["completions", "chat"]


@dataclass(frozen=True, slots=True)
class OpenAIProtocol:
    """Questions as requests to `model`, replies as answers.

    `completions` sends the prompt as token ids, rendered here, so that the template is ours for certain; `chat` leaves
    rendering to the server, and is refused if its prompt has another length. With `token_ids` the server is asked for
    the exact ids of its answer (an extension of vLLM that others ignore).
    """

    model: str
    transcriber: Transcriber
    settings: SamplingSettings
    api: Api = "completions"
    token_ids: bool = True

    @property
    def path(self) -> str:
        """Where requests go, below the endpoint's /v1."""
        return "completions" if self.api == "completions" else "chat/completions"

    def request(self, question: Question) -> dict[str, Any]:
        """The JSON body; fields beyond the OpenAI protocol are sent only where they say something."""
        settings = self.settings
        extensions = {
            "top_k": settings.top_k if settings.top_k > 0 else None,
            "min_p": settings.min_p if settings.min_p > 0 else None,
            "return_token_ids": self.token_ids or None,
        }
        return {
            "model": self.model,
            **self._prompt(question),
            "max_tokens": settings.max_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "seed": question.seed,
            **{name: value for name, value in extensions.items() if value is not None},
        }

    def reply(self, question: Question, body: object) -> Reply:
        """The answer in a server's reply.

        Raises:
            FormatError: the reply has another shape, or the answer neither ended nor reached its limit.
            CompatibilityError: the server rendered the chat differently.
        """
        try:
            choice = _mapping(_mapping(body)["choices"][0])
            text = choice["text"] if self.api == "completions" else _content(choice["message"])
        except (KeyError, IndexError, TypeError) as error:
            raise FormatError(f"the reply is not of the OpenAI protocol ({error!r}): {str(body)[:100]}") from error
        self._check_prompt(question, _mapping(body))
        ids = choice.get("token_ids")
        reason = choice.get("finish_reason")
        if not isinstance(text, str) or (reason != "stop" and reason != "length"):
            raise FormatError(f"the answer is {text!r:.60}, finish_reason {reason!r}; expected a text, stop or length")
        return Reply(text, _ids(ids) if ids else None, reason)

    def _prompt(self, question: Question) -> dict[str, Any]:
        if self.api == "completions":
            return {"prompt": list(question.prompt.token_ids)}
        messages = [{"role": message.role, "content": message.content} for message in question.messages]
        return {"messages": messages, "chat_template_kwargs": {"enable_thinking": self.transcriber.thinking}}

    def _check_prompt(self, question: Question, body: Mapping[str, Any]) -> None:
        usage = body.get("usage")
        found = usage.get("prompt_tokens") if isinstance(usage, Mapping) else None
        expected = len(question.prompt.token_ids)
        if isinstance(found, int) and found not in (0, expected):
            raise CompatibilityError(
                f"the endpoint counts {found} prompt tokens where the target's chat template gives {expected}: it has "
                "another template or tokenizer; name the model that it serves as --target, or use --api completions"
            )


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object, found {type(value).__name__}")
    return value


def _content(message: object) -> object:
    """The answer of a chat, thoughts included; a server that cuts them off the text hides what the target wrote."""
    fields = _mapping(message)
    if fields.get("reasoning_content") or fields.get("reasoning"):
        raise CompatibilityError("the endpoint cuts thoughts off its answers (reasoning parser); use --api completions")
    return fields["content"]


def _ids(values: Sequence[object]) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise FormatError(f"token_ids is {str(values)[:60]}; expected whole numbers")
    return tuple(values)
