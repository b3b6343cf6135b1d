"""The seam between what is to be answered and who answers it: an endpoint, or the built-in engine."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from dspark.data.chat import Message
from dspark.data.transcript import RenderedPrompt

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How answers are drawn. `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    max_tokens: int = 512


@dataclass(frozen=True, slots=True)
class Question:
    """One turn of conversation number `index`: the chat so far, as messages and rendered, and the draw's seed."""

    index: int
    turn: int
    messages: tuple[Message, ...]
    prompt: RenderedPrompt
    seed: int


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. `token_ids` are exact, end token included where it was reached; None if only the text is known."""

    text: str
    token_ids: tuple[int, ...] | None
    finish_reason: FinishReason


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no answer to this question; others may still be answered."""

    reason: str
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a question."""

    question: Question
    result: Reply | Failure


class Backlog:
    """Questions that wait: later turns first, so that conversations are finished early, then new ones in order."""

    def __init__(self, questions: Iterable[Question]) -> None:
        self._new = iter(questions)
        self._next_turns: deque[Question] = deque()

    def take(self) -> Question | None:
        """The next question; None if there is none now. One that is being answered may lead to another."""
        return self._next_turns.popleft() if self._next_turns else next(self._new, None)

    def follow_up(self, question: Question) -> None:
        """Ask the next turn of a conversation."""
        self._next_turns.append(question)


class AnswerSource(Protocol):
    """Who answers: as many questions at once as it can, each outcome as soon as it is known."""

    def answers(self, backlog: Backlog) -> Iterator[Outcome]:
        """Outcomes in any order until nothing is left; whoever reads them may add to the backlog meanwhile.

        Raises:
            EndpointError: nobody answers any more.
        """
        ...
