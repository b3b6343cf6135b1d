"""Prompts to on-policy answers: every assistant turn is the target's own, in the context of its own earlier answers."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from dspark.data.answer_file import AnswerFile, ErrorFile
from dspark.data.answer_row import Provenance, StoredAnswer, answer_row
from dspark.data.answer_source import AnswerSource, Backlog, Failure, Outcome, Question, Reply
from dspark.data.conversation import Conversation
from dspark.data.transcript import AnswerTokens, Transcriber
from dspark.errors import CompatibilityError, ConfigError, DsparkError, FormatError


@dataclass(frozen=True, slots=True)
class RegenerateReport:
    """What a run did: `answers` in the file, of them `new`. `failed` questions are asked again by the next run."""

    answers: int
    new: int
    response_tokens: int
    truncated: int
    failed: int
    interrupted: bool

    @property
    def finished(self) -> bool:
        """Whether nothing is left to ask."""
        return not self.interrupted and self.failed == 0


@dataclass(frozen=True, slots=True)
class Progress:
    """One more answer or failure: `answers` are on disk, `failed` are not."""

    answers: int
    failed: int
    last: str


class Regeneration:
    """Answers `conversations` into `file`; what is there already is not asked again.

    A conversation ends early with an answer that was cut by its limit: the target never ended that turn, so that
    nothing it would say can follow.
    """

    def __init__(
        self,
        conversations: Sequence[Conversation],
        transcriber: Transcriber,
        provenance: Provenance,
        file: AnswerFile,
        errors: ErrorFile,
        watch: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._conversations, self._transcriber, self._provenance = conversations, transcriber, provenance
        self._file, self._errors, self._watch = file, errors, watch
        self._new = self._failed = self._tokens = self._truncated = 0

    def run(self, source: AnswerSource) -> RegenerateReport:
        """Ask `source` until all is answered, Ctrl-C, or an error; what was answered is in the file in every case.

        Raises:
            EndpointError: nobody answers any more.
            CompatibilityError: an answer in the file belongs to a conversation with other words.
            OSError: the file cannot be written; its journal keeps what was.
        """
        with closing(self._file):
            interrupted = self._ask(source)
            self._file.arrange(self._order())
        return RegenerateReport(len(self._file), self._new, self._tokens, self._truncated, self._failed, interrupted)

    def _ask(self, source: AnswerSource) -> bool:
        """Whether Ctrl-C ended the asking."""
        backlog = Backlog(self._missing())
        try:
            with closing(_iterator(source, backlog)) as outcomes:
                for outcome in outcomes:
                    self._take(outcome, backlog)
        except KeyboardInterrupt:
            return True
        except DsparkError as error:
            self._file.arrange(self._order())
            raise self._with_state(error) from error
        return False

    def _take(self, outcome: Outcome, backlog: Backlog) -> None:
        question, result = outcome.question, outcome.result
        answer_id = self._conversations[question.index].answer_id(question.turn)
        if isinstance(result, Reply):
            result = self._keep(question, result)
        if isinstance(result, Failure):
            self._failed += 1
            self._errors.add(answer_id, result.reason, result.attempts)
        elif (following := self._next_question(question.index)) is not None:
            backlog.follow_up(following)
        self._watch(Progress(len(self._file), self._failed, answer_id))

    def _keep(self, question: Question, reply: Reply) -> Reply | Failure:
        try:
            tokens = self._tokens_of(question, reply)
        except FormatError as error:
            return Failure(str(error))
        conversation = self._conversations[question.index]
        self._file.add(answer_row(conversation, question, reply, tokens, self._provenance))
        self._new += 1
        self._tokens += len(tokens.response_ids)
        self._truncated += reply.finish_reason == "length"
        return reply

    def _tokens_of(self, question: Question, reply: Reply) -> AnswerTokens:
        ended = reply.finish_reason == "stop"
        if reply.token_ids is None:
            return self._transcriber.from_text(question.prompt, reply.text, finished=ended)
        return self._transcriber.from_ids(question.prompt, reply.token_ids, finished=ended)

    def _missing(self) -> Iterator[Question]:
        """The first unanswered turn of every conversation."""
        for index in range(len(self._conversations)):
            question = self._next_question(index)
            if question is not None:
                yield question

    def _next_question(self, index: int) -> Question | None:
        conversation = self._conversations[index]
        answers: list[str] = []
        for turn in range(len(conversation.turns)):
            stored = self._stored(conversation, turn)
            if stored is None:
                return self._question(index, answers)
            if stored.finish_reason == "length":
                return None
            answers.append(stored.response)
        return None

    def _stored(self, conversation: Conversation, turn: int) -> StoredAnswer | None:
        answer_id = conversation.answer_id(turn)
        stored = self._file.find(answer_id)
        if stored is not None and stored.digest != conversation.digest:
            raise CompatibilityError(
                f"{self._file.path} holds an answer {answer_id!r} to other words than the prompts'. Name another file."
            )
        return stored

    def _question(self, index: int, answers: Sequence[str]) -> Question:
        conversation = self._conversations[index]
        messages = conversation.messages(answers)
        try:
            prompt = self._transcriber.render(messages)
        except ConfigError as error:
            raise ConfigError(f"Prompt {conversation.id!r}: {error}") from error
        seed = answer_seed(self._provenance.seed, conversation.answer_id(len(answers)))
        return Question(index, len(answers), messages, prompt, seed)

    def _order(self) -> Iterator[str]:
        for conversation in self._conversations:
            yield from (conversation.answer_id(turn) for turn in range(len(conversation.turns)))

    def _with_state(self, error: DsparkError) -> DsparkError:
        kept = f"{len(self._file)} answers are kept in {self._file.path}; the same command goes on"
        return type(error)(f"{str(error).rstrip('.')}. {kept}")


def answer_seed(run_seed: int, answer_id: str) -> int:
    """Seed of one answer, below 2^31 (servers differ in what they take): whatever was asked before, it is the same."""
    digest = hashlib.sha256(f"{run_seed}\0{answer_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def report_json(report: RegenerateReport, file: AnswerFile, errors: ErrorFile) -> dict[str, Any]:
    """What `dspark data regenerate --json` prints."""
    return {
        "output": str(file.path),
        "answers": report.answers,
        "new": report.new,
        "response_tokens": report.response_tokens,
        "truncated": report.truncated,
        "failed": report.failed,
        "errors": str(errors.path) if report.failed else None,
        "finished": report.finished,
    }


def _iterator(source: AnswerSource, backlog: Backlog) -> Any:
    """A generator, so that whatever is in flight ends with it."""
    yield from source.answers(backlog)
