"""All texts that evaluating prompt sets will ask for, written ahead in large batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from dspark.data.chat import Message
from dspark.data.text import TextCodec
from dspark.evaluation.decode import turn_seed
from dspark.evaluation.prompts import Prompt, PromptSet
from dspark.evaluation.target_text import Question, TargetText
from dspark.evaluation.text_store import TextStore
from dspark.types import SamplingParams


def write_texts(
    store: TextStore,
    codec: TextCodec,
    sets: Sequence[PromptSet],
    all_params: Sequence[SamplingParams],
    seed: int,
    watch: Callable[[TargetText], None] = lambda text: None,
) -> None:
    """Answer every turn of every prompt with each of `all_params`, seeded as `evaluate` seeds them.

    A later turn holds the answer to the one before, so all first turns are written together, then all second ones.
    """
    while questions := list(_next_questions(store, codec, sets, all_params, seed)):
        store.write(questions, watch)


def _next_questions(
    store: TextStore, codec: TextCodec, sets: Sequence[PromptSet], all_params: Sequence[SamplingParams], seed: int
) -> Iterator[Question]:
    for prompts in sets:
        for index, prompt in enumerate(prompts.prompts):
            for params in all_params:
                question = _unanswered(store, codec, prompt, replace(params, seed=seed + index))
                if question is not None:
                    yield question


def _unanswered(store: TextStore, codec: TextCodec, prompt: Prompt, params: SamplingParams) -> Question | None:
    """The first turn of a prompt that has no text yet."""
    messages: list[Message] = []
    for turn, user in enumerate(prompt.turns):
        messages.append(Message("user", user))
        ids = tuple(codec.encode_chat(messages))
        question = Question(ids, replace(params, seed=turn_seed(params.seed, turn)))
        text = store.find(question)
        if text is None:
            return question
        messages.append(Message("assistant", text.output(store.info, codec.detokeniser())[1]))
    return None
