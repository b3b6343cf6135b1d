"""One line of a file of regenerated answers: what `read_answers` reads, and all that tells where it came from."""

from dataclasses import asdict, dataclass
from typing import Any

from dspark.data.answer_source import FinishReason, Question, Reply, SamplingSettings
from dspark.data.conversation import Conversation
from dspark.data.transcript import AnswerTokens


@dataclass(frozen=True, slots=True)
class Provenance:
    """What decides the answers of a file beside its prompts; files of different provenance are not mixed.

    `model` is what the endpoint calls it, or the built-in target; `target_hash` is empty for an endpoint.
    """

    model: str
    template_hash: str
    thinking: bool
    seed: int
    settings: SamplingSettings
    target_hash: str = ""

    def as_json(self) -> dict[str, Any]:
        """Flat, as every line records it; the run's seed is `run_seed`, beside the `seed` of the answer."""
        return {
            "model": self.model,
            "target_hash": self.target_hash,
            "template_hash": self.template_hash,
            "thinking": self.thinking,
            "run_seed": self.seed,
            **asdict(self.settings),
        }


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """What a run that goes on must know of an answer: whose it is, and what the conversation continues with."""

    digest: str
    response: str
    finish_reason: FinishReason


def answer_row(
    conversation: Conversation, question: Question, reply: Reply, tokens: AnswerTokens, provenance: Provenance
) -> dict[str, Any]:
    """The line of an answer. `exact_tokens` tells whether the model's own ids are kept or its text was encoded."""
    return {
        "id": conversation.answer_id(question.turn),
        "domain": conversation.domain,
        "turn": question.turn,
        "prompt": conversation.turns[question.turn],
        "response": reply.text,
        "prompt_ids": tokens.prompt_ids,
        "response_ids": tokens.response_ids,
        "finish_reason": reply.finish_reason,
        "exact_tokens": reply.token_ids is not None,
        "conversation": conversation.digest,
        "seed": question.seed,
        **provenance.as_json(),
    }
