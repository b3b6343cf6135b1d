"""Speculative decoding replayed along texts that the target wrote by itself: the loop's rounds, without its forwards.

The loop emits token x with probability p(x), as an accepted draft with probability min(p(x), q(x)). So given the text,
a draft is accepted with probability min(1, q(x) / p(x)), each independently of the others and of the text to come; and
accepted drafts equal the text, so q is the drafter's teacher-forced law. Hence one training-style pass per text, with
every token as an anchor, gives the law of all rounds. At temperature 0 both laws are one-hot and nothing is random.

Shapes: P prompt tokens, n text tokens, A anchors, G slots (gamma), V_draft draft vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from dspark.core.params import is_greedy
from dspark.core.sampling import probabilities
from dspark.core.tau import Round, RoundTally
from dspark.drafters.drafter_module import DrafterModule
from dspark.engine.options import DecodeOptions
from dspark.engine.request import max_drafts
from dspark.engine.result import GenerationResult, Times
from dspark.engine.stops import Detokeniser, Output
from dspark.errors import ConfigError
from dspark.evaluation.target_text import Question, TargetText
from dspark.evaluation.text_store import TextStore
from dspark.types import RaggedTarget, SamplingParams, as_ids

CHUNK = 32
"""Anchors whose logits over the draft vocabulary are held at a time."""

Accept = Callable[[float], bool]
"""Whether a draft passes that is accepted with the given probability."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Stands in for the reference loop in an evaluation, with texts from `store`.

    At temperatures above 0 the rounds of a text are drawn `simulations` times, and the tally holds all of them: the
    same expectation with less noise.
    """

    store: TextStore
    drafter: DrafterModule
    options: DecodeOptions = field(default_factory=DecodeOptions)
    simulations: int = 16

    def __post_init__(self) -> None:
        options = self.options
        if options != DecodeOptions(options.max_draft_tokens, prefill_chunk=options.prefill_chunk):
            raise ConfigError("replay knows token rejection of whole sampled blocks only; run the loop itself")
        if not 0 < self.gamma <= self.store.writer.overhang:
            raise ConfigError(
                f"{self.gamma} drafts a round, expected 1 to {self.store.writer.overhang}: as many as the texts go on "
                "beyond their limit"
            )

    @property
    def target(self) -> RaggedTarget:
        """The target that wrote the texts."""
        return self.store.writer.target

    @property
    def gamma(self) -> int:
        """Drafts of a round."""
        return max_drafts(self.drafter, self.options)

    def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams, detokeniser: Detokeniser | None = None
    ) -> GenerationResult:
        """The text of a request and the rounds that the loop would have made of it. Raises as `TextStore.text` does."""
        text = self.store.text(Question(tuple(prompt_ids), params))
        output, string = text.output(self.store.info, detokeniser)
        features = self.store.features(text, self.drafter.shape.target_layer_ids)
        acceptance = acceptance_table(self.drafter, text, features, len(output.token_ids) - 1, self.gamma).tolist()
        simulations = 1 if is_greedy(params) else self.simulations
        tallies = [replay_rounds(acceptance, output, drawn(params.seed, index)) for index in range(simulations)]
        assert output.finish_reason is not None
        return GenerationResult(
            tuple(output.token_ids), string, output.finish_reason, RoundTally.merged(tallies), Times()
        )


def drawn(seed: int, simulation: int) -> Accept:
    """Accept by chance, each simulation with random numbers of its own."""
    generator = np.random.default_rng((seed, simulation))
    return lambda probability: generator.random() < probability


def replay_rounds(acceptance: Sequence[Sequence[float]], output: Output, accept: Accept) -> RoundTally:
    """Rounds along a finished text, counted as the loop counts them.

    `acceptance[i][k]` is the probability that slot k of the block whose anchor is text token i is accepted, given that
    the slots before it are. The last round may accept drafts beyond the limit, but none beyond a final stop token.
    """
    tally = RoundTally(first_tokens=1)
    last, anchor = len(output.token_ids) - 1, 0
    while anchor < last:
        slots = acceptance[anchor]
        drafted = len(slots)
        usable = min(drafted, last - anchor) if output.ended_by_token else drafted
        accepted = next((k for k in range(usable) if not accept(slots[k])), usable)
        emitted = min(accepted + 1, last - anchor)
        ended = output.ended_by_token and accepted == last - anchor
        tally.add(Round(drafted, drafted, accepted, emitted, ended))
        anchor += emitted
    return tally


@torch.inference_mode()
def acceptance_table(drafter: DrafterModule, text: TargetText, features: Tensor, anchors: int, gamma: int) -> Tensor:
    """Acceptance probabilities [A, G] (float64) of the blocks at the first `anchors` text tokens.

    `features` [S, m * d] cover S >= P + A positions. Slots behind the end of the text have probability 0.
    """
    if anchors == 0:
        return torch.zeros(0, gamma, dtype=torch.float64)
    first = len(text.question.prompt_ids)
    tokens, p = as_ids((*text.question.prompt_ids, *text.token_ids)), torch.tensor(text.probabilities).double()
    places = first + torch.arange(anchors)[:, None] + torch.arange(gamma + 1)
    exists = places < len(tokens)
    places = places.clamp(max=len(tokens) - 1)
    previous, labels = tokens[places[:, :-1]], tokens[places[:, 1:]]
    hidden = drafter.forced_states(features, tokens[: len(features)], places[:, 0], previous)
    chunks = [slice(start, start + CHUNK) for start in range(0, anchors, CHUNK)]
    params = text.question.params
    q = torch.cat([label_probabilities(drafter, hidden[c], previous[c], labels[c], params) for c in chunks])
    return (q / p[places[:, 1:] - first]).clamp(max=1.0) * exists[:, 1:]


def label_probabilities(
    drafter: DrafterModule, hidden: Tensor, previous: Tensor, labels: Tensor, params: SamplingParams
) -> Tensor:
    """q(x) [A, G] (float64) of `labels` x [A, G] after `previous` [A, G]; 0 for tokens outside the draft vocabulary."""
    q = probabilities(drafter.draft_logits(hidden, previous).float(), params)
    if drafter.draft_token_ids is None:
        return q.gather(-1, labels[..., None])[..., 0].double()
    drafts = torch.full((drafter.info.vocab_size,), -1)
    drafts[drafter.draft_token_ids] = torch.arange(len(drafter.draft_token_ids))
    ids = drafts[labels]
    return q.gather(-1, ids.clamp(min=0)[..., None])[..., 0].double() * (ids >= 0)
