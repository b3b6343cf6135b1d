"""A small tokenizer with a chat template, and a model that answers by rule: enough to regenerate answers."""

import hashlib
from collections.abc import Iterator

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from dspark.data.answer_source import Backlog, Failure, FinishReason, Outcome, Question, Reply
from dspark.data.conversation import Conversation
from dspark.data.transcript import Transcriber
from dspark.targets.tokenizer import SpecialTokens, Tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)
SPECIAL = ("<|im_start|>", "<|im_end|>", "<|eos|>")


def tokenizer(template: str | None = TEMPLATE, *merges: tuple[str, str], split: bool = True) -> Tokenizer:
    """One token per byte and one per merge; without `split` merges may cross any boundary of words."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    raw = RawTokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=list(merges)))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return Tokenizer(raw, SpecialTokens(eos="<|eos|>"), template)


def transcriber() -> Transcriber:
    return Transcriber(tokenizer())


def conversations(count: int) -> list[Conversation]:
    """Every third one has three turns."""
    return [
        Conversation(f"c{i}", "math", tuple(f"Question {i}.{turn}" for turn in range(3 if i % 3 == 0 else 1)))
        for i in range(count)
    ]


def answer(prompt: str, seed: int) -> tuple[str, FinishReason]:
    """A text that depends on all that was said and on the seed; one in five is cut by its limit."""
    digest = hashlib.sha256(f"{prompt}{seed}".encode()).hexdigest()
    return f"Answer {digest[:24]} é", "length" if int(digest, 16) % 5 == 0 else "stop"


class RuleSource:
    """Answers by rule, `window` at once and the last first; stops with `error` after `patience` answers.

    Questions in `refused` (texts of a turn) fail.
    """

    def __init__(
        self, patience: int = 10**9, error: BaseException | None = None, refused: frozenset[str] = frozenset()
    ) -> None:
        self.patience, self.error, self.refused = patience, error, refused
        self.asked: list[Question] = []

    def answers(self, backlog: Backlog) -> Iterator[Outcome]:
        window: list[Question] = []
        while True:
            while len(window) < 4 and (question := backlog.take()) is not None:
                window.append(question)
            if not window:
                return
            if len(self.asked) == self.patience and self.error is not None:
                raise self.error
            question = window.pop()
            self.asked.append(question)
            if question.messages[-1].content in self.refused:
                yield Outcome(question, Failure("refused", 3))
            else:
                text, reason = answer(question.prompt.text, question.seed)
                yield Outcome(question, Reply(text, None, reason))
