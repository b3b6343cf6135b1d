"""Chain drafters in the loop behind a real target: q is the law that training sees, and sampled text the target's."""

from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.rejection import TokenRejection
from dspark.drafters.chain import ChainDrafter
from dspark.drafters.packing import pack_drafter
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.nn.linear import PlainKernel
from dspark.targets.native import NativeTarget
from dspark.types import SamplingParams, as_ids
from tests.evaluation.tiny import CHAINS, chain, native

V, PROMPT = 5, (0, 3, 1)
PARAMS = SamplingParams(temperature=0.8, ignore_eos=True, max_tokens=24, seed=5)
KEPT = torch.tensor([4, 0, 2])


@dataclass(frozen=True)
class Recorded(TokenRejection):
    """Token rejection that keeps (q, drafts) of every block."""

    blocks: list[tuple[Tensor, list[int]]] = field(default_factory=list)

    def thresholds(self, p: Tensor, q: Tensor, drafts: object) -> list[float]:
        self.blocks.append((q.clone(), list(drafts)))
        return super().thresholds(p, q, drafts)


def teacher_forced(target: NativeTarget, module: ChainDrafter, text: tuple[int, ...], drafts: list[int]) -> Tensor:
    """q [k, V] of `drafts` after `text`, by the path that training takes."""
    tokens = as_ids([*text, *drafts])
    features = target.states(tokens[None], taps=module.shape.target_layer_ids).features[0]
    previous = as_ids([text[-1], *drafts[:-1]])[None]
    states = module.forced_states(features, tokens, torch.tensor([len(text) - 1]), previous)
    logits = module.draft_logits(states, previous)[0]
    vocabulary = DraftVocabulary(V, module.draft_token_ids)
    return torch.stack([(vocabulary.scatter(row).double() / PARAMS.temperature).softmax(-1) for row in logits])


@pytest.mark.parametrize("kind", CHAINS)
@pytest.mark.parametrize("kept", [None, KEPT], ids=["full", "pruned"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_loop_judges_with_the_laws_that_training_sees(kind: str, kept: Tensor | None, packed: bool) -> None:
    target, rule = native(V), Recorded()
    plain, module = chain(target, kind, 3, kept), chain(target, kind, 3, kept)
    loop = ReferenceLoop(target, pack_drafter(module, PlainKernel()) if packed else module, DecodeOptions(rule=rule))
    text, accepted, judged = PROMPT, 0, 0
    for commit in loop.start(PROMPT, PARAMS):
        if rule.blocks and (drafts := rule.blocks[-1][1]):
            q = rule.blocks[-1][0]
            torch.testing.assert_close(q.double(), teacher_forced(target, plain, text, drafts), atol=1e-5, rtol=1e-4)
            judged, accepted = judged + len(drafts), accepted + len(commit.token_ids) - 1
        text = (*text, *commit.token_ids)
    assert 0 < accepted < judged


@pytest.mark.parametrize("kind", CHAINS)
def test_long_prompts_in_pieces_and_copied_rounds_leave_greedy_text_as_it_is(kind: str) -> None:
    target = native(9, seed=4)
    params = replace(PARAMS, temperature=0.0)
    plain = ReferenceLoop(target).generate((*PROMPT, 2, 2, 4, 1), params)
    loop = ReferenceLoop(target, chain(target, kind, seed=4), DecodeOptions(lookup=PromptLookup(2, 3), prefill_chunk=2))
    result = loop.generate((*PROMPT, 2, 2, 4, 1), params)
    assert result.token_ids == plain.token_ids
    assert 0 < result.lookup_rounds < result.tally.rounds
    assert 0 < result.metrics["accepted_tokens"] < result.metrics["drafted_tokens"]
