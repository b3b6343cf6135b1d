"""How the loop decodes, beside what the request asks for."""

from dataclasses import dataclass, field

from dspark.core.admission import AdmissionPolicy, admit_all
from dspark.core.rejection import RejectionRule, TokenRejection
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Choices that change speed and acceptance, never the law of the text.

    `max_draft_tokens` caps the drafts of a round below the drafter's gamma (None: no cap), `rule` judges them, `admits`
    decides slot by slot how many there are, except in rounds that an observer wants in full. With `greedy_drafts` the
    drafter takes its most likely token at any temperature, judged with a one-hot q. Where `lookup` finds the last
    tokens repeated, a round copies its drafts instead of asking the drafter, and neither the cap nor `admits` applies;
    without a drafter it is the only source of drafts. The prompt is read `prefill_chunk` tokens at a time.

    Without a cap, rounds may be slower than plain decoding where checking drafts is dear: `dspark.measure_draft_limit`
    says how many pay on this machine.
    """

    max_draft_tokens: int | None = None
    rule: RejectionRule = field(default_factory=TokenRejection)
    admits: AdmissionPolicy = admit_all
    greedy_drafts: bool = False
    lookup: PromptLookup | None = None
    prefill_chunk: int = 512

    def __post_init__(self) -> None:
        if self.max_draft_tokens is not None and self.max_draft_tokens < 0:
            raise ConfigError(f"max_draft_tokens is {self.max_draft_tokens}; expected 0 or more, or None for no cap")
        if self.prefill_chunk < 1:
            raise ConfigError(f"prefill_chunk is {self.prefill_chunk}; expected 1 token or more")
