"""Names and shapes of DeepSpec's tensors, so that a directory can be checked before any weight is read.

d width, f MLP width, H / K query / key heads, h head width, m taps, V vocabulary, V_draft draft vocabulary, R rank.
"""

from dspark.drafters.config import DrafterConfig, HeadKind
from dspark.drafters.eagle3 import Eagle3Config
from dspark.drafters.gemma4 import Gemma4Config
from dspark.drafters.mtp import MTPConfig

AnyConfig = DrafterConfig | Eagle3Config | MTPConfig
Shapes = dict[str, tuple[int, ...]]

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
DRAFT_TO_TARGET, TARGET_TO_DRAFT = "d2t", "t2d"
"""The draft vocabulary as speculators stores it: target id = draft id + d2t[draft id]; t2d [V] marks kept targets."""


SELECTOR_NAMES = {
    "markov_head.markov_w1.weight": "candidate_selector.predecessor_codebook",
    "markov_head.markov_w2.weight": "candidate_selector.successor_codebook",
    "markov_head.hidden_projection.weight": "candidate_selector.hidden_projection.weight",
}
"""DFlash 2's names of what is one more sequential head here."""


def stored_name(name: str, config: object) -> str:
    """The name in a file of the drafter's own tensor `name`."""
    selects = isinstance(config, DrafterConfig) and config.markov_head_type is HeadKind.SELECTOR
    return SELECTOR_NAMES.get(name, name) if selects else name


def shared_shapes(config: AnyConfig) -> Shapes:
    """Frozen copies of the target's embedding [V, d] and head [V_draft, d], which a file may leave out."""
    rows = config.vocab_size if config.draft_vocab_size is None else config.draft_vocab_size
    return {EMBEDDING: (config.vocab_size, config.hidden_size), HEAD: (rows, config.hidden_size)}


def draft_map_shapes(config: AnyConfig) -> Shapes:
    """The draft vocabulary, nothing without pruning."""
    if config.draft_vocab_size is None:
        return {}
    return {DRAFT_TO_TARGET: (config.draft_vocab_size,), TARGET_TO_DRAFT: (config.vocab_size,)}


def own_shapes(config: AnyConfig) -> Shapes:
    """Everything a drafter trains."""
    width = config.hidden_size
    shapes: Shapes = {"norm.weight": (width,)}
    for layer in range(config.num_hidden_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _layer_shapes(config).items()}
    if isinstance(config, MTPConfig):
        joining = {"enorm": (width,), "hnorm": (width,), "eh_proj": (width, 2 * width)}
        return shapes | {f"layers.0.{name}.weight": shape for name, shape in joining.items()}
    shapes["fc.weight"] = (width, len(config.target_layer_ids) * width)
    if isinstance(config, Eagle3Config):
        return shapes | {"layers.0.hidden_norm.weight": (width,)}
    for layer in range(config.num_hidden_layers):
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in _ingredient_shapes(config).items()}
    return shapes | {"hidden_norm.weight": (width,)} | _markov_shapes(config) | _confidence_shapes(config)


def _layer_shapes(config: AnyConfig) -> Shapes:
    width, inner, head = config.hidden_size, config.intermediate_size, config.head_dim
    reads = 2 * width if isinstance(config, Eagle3Config) else width
    queries, keys = config.num_attention_heads * head, config.num_key_value_heads * head
    matrices = {"q": (queries, reads), "k": (keys, reads), "v": (keys, reads), "o": (width, queries)}
    gemma = config if isinstance(config, Gemma4Config) else None
    if gemma is not None and gemma.attention_k_eq_v:
        del matrices["v"]
    shapes: Shapes = {f"self_attn.{name}_proj.weight": shape for name, shape in matrices.items()}
    if config.attention_bias:
        shapes |= {f"self_attn.{name}_proj.bias": (rows,) for name, (rows, _) in matrices.items()}
    norms = {"input_layernorm": width, "post_attention_layernorm": width}
    norms |= {"self_attn.q_norm": head, "self_attn.k_norm": head}
    if gemma is not None:
        norms |= {"pre_feedforward_layernorm": width, "post_feedforward_layernorm": width}
        shapes["layer_scalar"] = (1,)
    shapes |= {f"{name}.weight": (size,) for name, size in norms.items()}
    dense = not isinstance(config, DrafterConfig) or config.experts is None
    return shapes | _mlp_shapes("mlp" if dense else "mlp.shared_experts", width, inner)


def _mlp_shapes(prefix: str, width: int, inner: int) -> Shapes:
    sizes = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    return {f"{prefix}.{name}.weight": shape for name, shape in sizes.items()}


def _ingredient_shapes(config: DrafterConfig) -> Shapes:
    """What one layer has beyond Qwen3's; the shared expert stands in for the dense MLP."""
    shapes: Shapes = {}
    width, convolution, experts, hyper = (
        config.hidden_size, config.convolution, config.experts, config.hyper_connections,
    )  # fmt: skip
    if convolution is not None:
        for conv in ("attention_conv", "mlp_conv"):
            shapes[f"{conv}.base_kernel"] = (2, convolution.taps, width)
            rows = 2 * convolution.taps * width // convolution.group
            shapes[f"{conv}.kernel_projection.weight"] = (rows, width)
    if experts is not None:
        shapes |= {"mlp.gate.weight": (experts.routed, width), "mlp.e_score_correction_bias": (experts.routed,)}
        for number in range(experts.routed):
            shapes |= _mlp_shapes(f"mlp.experts.{number}", width, experts.width)
    if hyper is not None:
        outputs = hyper.streams * (hyper.streams + 2)
        for residual in ("attention_residual", "mlp_residual"):
            shapes[f"{residual}.fn.weight"] = (outputs, hyper.streams * width)
            shapes |= {f"{residual}.base": (outputs,), f"{residual}.scale": (3,)}
    return shapes


def _markov_shapes(config: DrafterConfig) -> Shapes:
    width, rank = config.hidden_size, config.markov_rank
    if not rank:
        return {}
    shapes: Shapes = {
        "markov_head.markov_w1.weight": (config.vocab_size, rank),
        "markov_head.markov_w2.weight": (config.draft_vocabulary, rank),
    }
    if config.markov_head_type is HeadKind.GATED:
        shapes |= {"markov_head.gate_proj.weight": (rank, width + rank), "markov_head.gate_proj.bias": (rank,)}
    if config.markov_head_type is HeadKind.SELECTOR:
        shapes |= {"markov_head.hidden_projection.weight": (rank, width)}
        return {stored_name(name, config): shape for name, shape in shapes.items()}
    if config.markov_head_type is HeadKind.RNN:
        joint = 3 * rank
        shapes |= {"markov_head.joint_proj.weight": (joint, 2 * rank + width), "markov_head.joint_proj.bias": (joint,)}
    return shapes


def _confidence_shapes(config: DrafterConfig) -> Shapes:
    if not config.enable_confidence_head:
        return {}
    reads = config.hidden_size + (config.markov_rank if config.confidence_head_with_markov else 0)
    return {"confidence_head.proj.weight": (1, reads), "confidence_head.proj.bias": (1,)}
