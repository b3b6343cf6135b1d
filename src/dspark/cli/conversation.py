"""A conversation: the messages so far, and the answers that a session gives to them."""

from dataclasses import replace
from typing import TYPE_CHECKING

from dspark.cli import console
from dspark.cli.session import Session

if TYPE_CHECKING:
    from dspark.data.chat import Message
    from dspark.engine.result import GenerationResult
    from dspark.types import SamplingParams


class Conversation:
    """Grows by one question and one answer at a time; an answer that was stopped stays as far as it came."""

    def __init__(self, session: Session, params: "SamplingParams", system: str | None, quiet: bool = False) -> None:
        self._session, self._params, self._system, self._quiet = session, params, system, quiet
        self.messages: list[Message] = []
        self.results: list[GenerationResult] = []
        self._questions = 0
        self.reset()

    def reset(self) -> None:
        """Forget everything but the system message."""
        from dspark.data.chat import Message

        self.messages = [] if self._system is None else [Message("system", self._system)]

    def ask(self, question: str) -> "GenerationResult | None":
        """Stream the answer to `question`; None when Ctrl-C stopped it.

        Raises:
            CapacityError: the conversation has outgrown the context; it is as it was before the question.
        """
        from dspark.data.chat import Message

        asked = [*self.messages, Message("user", question)]
        params = replace(self._params, seed=self._params.seed + self._questions)
        answer = self._session.start(self._session.codec.encode_chat(asked), params)
        self._questions += 1
        pieces: list[str] = []
        result = None
        try:
            for commit in answer:
                pieces.append(commit.text)
                if not self._quiet:
                    console.print_text(commit.text)
            result = answer.finish()
            self.results.append(result)
        except KeyboardInterrupt:
            console.note(" [stopped]", quiet=self._quiet)
        self.messages = [*asked, Message("assistant", "".join(pieces))]
        return result
