"""Real drafters of every head behind a real target: the loop draws from the trained law, and emits the target's.

Both models are tiny and random. `LEVEL` is the level of every chi-square test; the seeds are fixed.
"""

from dataclasses import dataclass, field, replace
from itertools import product

import pytest
import torch
from scipy import stats
from torch import Tensor

from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.output_law import Scheme, Tokens, output_law, target_law, total_variation
from dspark.core.rejection import TokenRejection
from dspark.drafters.config import DrafterConfig, HeadKind
from dspark.drafters.dspark import DSpark
from dspark.drafters.ingredients import Convolution, Experts, HyperConnections
from dspark.drafters.packing import pack_drafter
from dspark.engine.options import DecodeOptions
from dspark.engine.reference import ReferenceLoop
from dspark.nn.linear import PlainKernel
from dspark.targets.config import DecoderConfig
from dspark.targets.native import NativeTarget
from dspark.targets.weights import expected_shapes
from dspark.types import SamplingParams, TargetInfo, as_ids

V, WIDTH, LAYERS, TAPS, GAMMA = 5, 16, 2, (-1, 0), 3
PROMPT, POSITIONS = (0, 3, 1), 512
PARAMS = SamplingParams(temperature=0.8, ignore_eos=True)
KEPT = torch.tensor([4, 0, 2])
LEVEL = 1e-4
TOKENS, BINS = 160, 8
HEADS = (None, *HeadKind)
EXTENDED: dict[str, dict[str, object]] = {
    "dflash2": {"markov_head_type": HeadKind.SELECTOR, "candidates": 2, "convolution": Convolution(2, 4)},
    "convolved rnn": {"markov_head_type": HeadKind.RNN, "convolution": Convolution(3, 8)},
    "production": {"sliding_window": 4, "experts": Experts(3, 2, 8), "hyper_connections": HyperConnections(2, 20)},
    "everything": {
        "markov_head_type": HeadKind.GATED, "candidates": 3, "convolution": Convolution(2, 4), "sliding_window": 2,
        "experts": Experts(4, 1, 8), "hyper_connections": HyperConnections(3, 5),
    },
}  # fmt: skip
"""Fields beyond DeepSpec's, behind the vanilla head unless they name another."""


def random(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator) * (1.0 if len(shape) == 1 else shape[-1] ** -0.5)


@pytest.fixture(scope="module")
def target() -> NativeTarget:
    config = DecoderConfig.parse(
        {
            "model_type": "llama",
            "vocab_size": V,
            "hidden_size": WIDTH,
            "intermediate_size": 24,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 2,
            "max_position_embeddings": POSITIONS,
        }
    )
    generator = torch.Generator().manual_seed(0)
    weights = {name: random(shape, generator) for name, shape in expected_shapes(config).items()}
    info = TargetInfo("tiny", V, WIDTH, LAYERS, POSITIONS, ())
    return NativeTarget(config, info, weights, PlainKernel())


def drafter_of(target: NativeTarget, head: HeadKind | None, pruned: bool, extension: str = "") -> DSpark:
    kept = KEPT if pruned else None
    config = DrafterConfig(
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        vocab_size=V,
        num_target_layers=LAYERS,
        target_layer_ids=TAPS,
        mask_token_id=V - 1,
        block_size=GAMMA,
        markov_rank=0 if head is None else 4,
        markov_head_type=head or HeadKind.VANILLA,
        enable_confidence_head=head is not None,
        draft_vocab_size=None if kept is None else len(kept),
    )
    config = replace(config, **EXTENDED.get(extension, {}))
    module = DSpark(config, target.embedding_weight, target.lm_head_weight, kept)
    generator = torch.Generator().manual_seed(3)
    module.initialize(generator, std=0.4)
    with torch.no_grad():
        for parameter in module.parameters():
            if not parameter.any():  # what starts as the identity should do something here
                parameter.normal_(std=0.4, generator=generator)
    return module.eval()


def drafting(module: DSpark, packed: bool) -> DSpark:
    return pack_drafter(module, PlainKernel()) if packed else module


@dataclass(frozen=True)
class Recorded(TokenRejection):
    """Token rejection that keeps what it judged: (p, q, drafts) of every block."""

    blocks: list[tuple[Tensor, Tensor, list[int]]] = field(default_factory=list)

    def thresholds(self, p: Tensor, q: Tensor, drafts: object) -> list[float]:
        self.blocks.append((p.clone(), q.clone(), list(drafts)))
        return super().thresholds(p, q, drafts)


def law(logits: Tensor) -> Tensor:
    return (logits.double() / PARAMS.temperature).softmax(-1)


@torch.no_grad()
def teacher_forced(target: NativeTarget, module: DSpark, text: Tokens, drafts: list[int]) -> Tensor:
    """q [k, V] of `drafts` after `text`, by the path that training takes."""
    tokens = as_ids([*text, *drafts])
    features = target.states(tokens[None], taps=TAPS).features[0]
    hidden = module.training_states(features, tokens, torch.tensor([len(text) - 1]), gamma=GAMMA)
    previous = as_ids([text[-1], *drafts[:-1]])[None]
    logits = module.draft_logits(hidden[:, : len(drafts)], previous)[0]
    vocabulary = DraftVocabulary(V, module.draft_token_ids)
    return torch.stack([law(vocabulary.scatter(row)) for row in logits])


VARIANTS = pytest.mark.parametrize(
    ("head", "pruned", "packed"),
    list(product(HEADS, (False, True), (False, True))),
    ids=lambda value: str(value),
)


@VARIANTS
def test_the_loop_judges_with_the_laws_that_training_sees(
    target: NativeTarget, head: HeadKind | None, pruned: bool, packed: bool
) -> None:
    rule = Recorded()
    loop = ReferenceLoop(target, drafting(drafter_of(target, head, pruned), packed), DecodeOptions(rule=rule))
    plain = drafter_of(target, head, pruned)
    text = PROMPT
    for commit in loop.start(PROMPT, replace(PARAMS, max_tokens=16, seed=5)):
        p, q, drafts = rule.blocks[-1]
        states = target.states(as_ids([*text, *drafts])[None]).last_hidden[0, len(text) - 1 :]
        torch.testing.assert_close(p.double(), law(target.logits(states)), atol=1e-5, rtol=1e-4)
        if drafts:
            torch.testing.assert_close(q.double(), teacher_forced(target, plain, text, drafts), atol=1e-5, rtol=1e-4)
        text = (*text, *commit.token_ids)
    assert sum(len(drafts) for _, _, drafts in rule.blocks) >= 2 * GAMMA, "too few drafts to mean anything"


@VARIANTS
def test_a_shorter_block_is_the_one_that_training_sees(
    target: NativeTarget, head: HeadKind | None, pruned: bool, packed: bool
) -> None:
    plain, module = drafter_of(target, head, pruned), drafting(drafter_of(target, head, pruned), packed)
    tokens = as_ids([*PROMPT, 2, 4, 1])
    features = target.states(tokens[None], taps=TAPS).features[0]
    cache = module.new_cache(8)
    module.extend(features[:3], cache)
    block = module.begin(2, cache, gamma=2)
    stepped = torch.stack([block.step(previous)[0] for previous in (2, 4)])
    with torch.no_grad():
        hidden = plain.training_states(features, tokens, torch.tensor([3]), gamma=2)
        forced = plain.draft_logits(hidden, torch.tensor([[2, 4]]))[0]
    torch.testing.assert_close(stepped, forced, atol=1e-5, rtol=1e-4)


@torch.no_grad()
def p_value(loop: ReferenceLoop, target: NativeTarget, tokens: int) -> float:
    """Chi-square of a long text's probability integral transform: uniform if every token follows the target's law.

    Token x after its context gives u between P(< x) and P(<= x), with a random share of the step.
    """
    output = loop.generate(PROMPT, replace(PARAMS, max_tokens=tokens, seed=11)).token_ids
    states = target.states(as_ids([*PROMPT, *output])[None]).last_hidden[0, len(PROMPT) - 1 : -1]
    p = law(target.logits(states))
    drawn = as_ids(output)[:, None]
    upper, step = p.cumsum(-1).gather(1, drawn)[:, 0], p.gather(1, drawn)[:, 0]
    u = upper - step * torch.rand(len(output), generator=torch.Generator().manual_seed(2), dtype=torch.double)
    return float(stats.chisquare(torch.histc(u.float(), BINS, 0, 1).numpy()).pvalue)


class Credulous(TokenRejection):
    """Spoilt: judges as if every draft had been certain."""

    def thresholds(self, p: Tensor, q: Tensor, drafts: object) -> list[float]:
        return [1.0 for _ in drafts]


@pytest.mark.parametrize(("head", "pruned", "packed"), [(head, i % 2 == 1, i > 1) for i, head in enumerate(HEADS)])
def test_the_text_follows_the_target(target: NativeTarget, head: HeadKind | None, pruned: bool, packed: bool) -> None:
    loop = ReferenceLoop(target, drafting(drafter_of(target, head, pruned), packed))
    assert p_value(loop, target, TOKENS) > LEVEL


@pytest.mark.parametrize("extension", EXTENDED)
def test_extended_drafters_draw_from_the_laws_that_training_sees(target: NativeTarget, extension: str) -> None:
    rule = Recorded()
    module = drafter_of(target, HeadKind.VANILLA, False, extension)
    loop = ReferenceLoop(target, drafting(module, packed=True), DecodeOptions(rule=rule))
    plain, text = drafter_of(target, HeadKind.VANILLA, False, extension), PROMPT
    for commit in loop.start(PROMPT, replace(PARAMS, max_tokens=16, seed=5)):
        _, q, drafts = rule.blocks[-1]
        if drafts:
            torch.testing.assert_close(q.double(), teacher_forced(target, plain, text, drafts), atol=1e-5, rtol=1e-4)
            assert plain.config.candidates is None or ((q > 0).sum(-1) <= plain.config.candidates).all()
        text = (*text, *commit.token_ids)
    assert sum(len(drafts) for _, _, drafts in rule.blocks) >= 2 * GAMMA, "too few drafts to mean anything"


@pytest.mark.parametrize("extension", EXTENDED)
def test_the_text_of_extended_drafters_follows_the_target(target: NativeTarget, extension: str) -> None:
    loop = ReferenceLoop(target, drafter_of(target, HeadKind.VANILLA, False, extension))
    assert p_value(loop, target, TOKENS) > LEVEL


@pytest.mark.parametrize("extension", EXTENDED)
def test_greedy_text_is_that_of_plain_decoding(target: NativeTarget, extension: str) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    drafts = ReferenceLoop(target, drafter_of(target, HeadKind.VANILLA, False, extension)).generate(PROMPT, params)
    assert drafts.token_ids == ReferenceLoop(target).generate(PROMPT, params).token_ids
    assert drafts.metrics["drafted_tokens"] > 0


@torch.no_grad()
def test_every_text_has_the_targets_probability_by_enumeration(target: NativeTarget) -> None:
    """Two drafts over two candidates each, judged for every outcome: the law of three tokens is the target's."""
    module = drafter_of(target, HeadKind.VANILLA, False, "dflash2")

    def p_t(text: Tokens) -> Tensor:
        return law(target.logits(target.states(as_ids([*PROMPT, *text])[None]).last_hidden[0, -1:])[0])

    def q(text: Tokens, drafts: Tokens) -> Tensor:
        whole = (*PROMPT, *text)
        features = target.states(as_ids(whole)[None], taps=TAPS).features[0]
        cache = module.new_cache(16)
        module.extend(features[:-1], cache)
        block = module.begin(whole[-1], cache)
        return law([block.step(token)[0] for token in (whole[-1], *drafts)][-1])

    scheme = Scheme(p_t, q, TokenRejection(), gamma=2)
    assert total_variation(output_law(scheme, 3), target_law(scheme, 3)) < 1e-6
    assert int((q((), ()) > 0).sum()) == 2


def test_a_spoilt_loop_is_caught(target: NativeTarget) -> None:
    loop = ReferenceLoop(target, drafter_of(target, HeadKind.VANILLA, False), DecodeOptions(rule=Credulous()))
    assert p_value(loop, target, TOKENS) < LEVEL
