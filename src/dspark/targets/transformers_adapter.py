"""Any causal language model of transformers as a target, as long as its state can be rolled back."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from dspark.errors import CapacityError, CompatibilityError, DependencyError, FormatError
from dspark.targets.adapted_shape import adapted_shape
from dspark.targets.checkpoint import read_config, template_hash
from dspark.targets.config import check_taps
from dspark.targets.config_fields import ConfigFields
from dspark.targets.tokenizer import read_chat_template
from dspark.targets.weights import read_weights, weight_files
from dspark.targets.weights_hash import remembered_hash, weights_hash
from dspark.types import AFTER_NORM, EMBEDDING, Cache, TargetInfo, TargetOutput

_ATTENTION = frozenset({"full_attention", "sliding_attention", "attention", "dense", "sparse"})
"""Layer types whose only state is keys and values."""

_CROPPABLE = frozenset({"DynamicLayer", "DynamicSlidingWindowLayer"})
"""Cache layers that a configuration-less cache can stand in for, keeping every position."""

_PROBE_LENGTH = 4
_PROBE_TOLERANCE = 1e-2


class TransformersCache:
    """The K/V of one request. A DynamicCache made without configuration keeps all positions; windows only mask."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.state = _transformers().DynamicCache()

    def reserve(self, tokens: int) -> int:
        """The length after `tokens` more positions; CapacityError if they do not fit."""
        if self.length + tokens > self.capacity:
            raise CapacityError(
                f"{tokens} more tokens do not fit: {self.length} of {self.capacity} positions are taken"
            )
        return self.length + tokens

    def rollback(self, length: int) -> None:
        """Keep the first `length` positions."""
        if not 0 <= length <= self.length:
            raise CapacityError(f"cannot roll back to {length} positions: the cache holds {self.length}")
        if length < self.length:
            self.state.crop(length - self.length)
        self.length = length


class TransformersTarget:
    """A `Target` around a loaded model. Features come from hooks on the decoder layers, as contract 1 defines them.

    Raises:
        CompatibilityError: state that cannot be rolled back, or logits that are not head(last hidden state).
    """

    def __init__(self, model: Any, name: str, weights_hash: str = "", template_hash: str = "") -> None:
        config = model.config.get_text_config(decoder=True)
        refuse_unrollable(model, name)
        self._model = model.eval()
        self._cache_argument = _cache_argument(model)
        self._soft_cap: float | None = getattr(config, "final_logit_softcapping", None)
        self._layers = decoder_layers(model, config.num_hidden_layers, name)
        self.info = TargetInfo(
            name=name,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            max_positions=config.max_position_embeddings,
            eos_token_ids=ConfigFields(model.generation_config.to_dict()).ids("eos_token_id"),
            weights_hash=weights_hash,
            template_hash=template_hash,
        )
        self.config = adapted_shape(config)
        self._probe_head()

    @property
    def embedding_weight(self) -> Tensor:
        """[V, d], in the model's dtype."""
        weight: Tensor = self._model.get_input_embeddings().weight.detach()
        return weight

    @property
    def lm_head_weight(self) -> Tensor:
        """[V, d], in the model's dtype."""
        weight: Tensor = self._model.get_output_embeddings().weight.detach()
        return weight

    def new_cache(self, capacity: int) -> TransformersCache:
        """An empty cache that refuses more than `capacity` positions."""
        return TransformersCache(capacity)

    @torch.inference_mode()
    def forward(self, token_ids: Tensor, cache: Cache, taps: Sequence[int] = ()) -> TargetOutput:
        """Append `token_ids` [T] to the request of `cache` and return their states.

        Raises:
            CapacityError: the tokens do not fit the cache.
            ConfigError: a tap is no layer id.
            CompatibilityError: the cache is not of this target, or the model drops cached positions.
        """
        if not isinstance(cache, TransformersCache):
            raise CompatibilityError("this cache belongs to another target; use the one that `new_cache` returned")
        check_taps(taps, self.info.num_layers)
        end = cache.reserve(len(token_ids))
        with _Taps(self._layers, taps) as tapped:
            output = self._model.base_model(
                token_ids.unsqueeze(0), use_cache=True, **{self._cache_argument: cache.state}
            )
        kept = cache.state.get_seq_length()
        if kept != end:
            raise CompatibilityError(
                f"{self.info.name} keeps {kept} of {end} cached positions: it cannot be rolled back"
            )
        cache.length = end
        last_hidden: Tensor = output.last_hidden_state
        return TargetOutput(last_hidden.squeeze(0), tapped.features(last_hidden).squeeze(0))

    @torch.no_grad()
    def states(self, token_ids: Tensor, lengths: Tensor | None = None, taps: Sequence[int] = ()) -> TargetOutput:
        """States of whole right-padded sequences `token_ids` [B, T]: `last_hidden` [B, T, d], `features` [B, T, m * d].

        Attention is causal, so padding never reaches a real token; with `lengths` [B] the states of padding are zero.
        """
        check_taps(taps, self.info.num_layers)
        with _Taps(self._layers, taps) as tapped:
            last_hidden: Tensor = self._model.base_model(token_ids, use_cache=False).last_hidden_state
        features = tapped.features(last_hidden)
        if lengths is None:
            return TargetOutput(last_hidden, features)
        real = (torch.arange(token_ids.shape[1]) < lengths.unsqueeze(1)).unsqueeze(-1)
        return TargetOutput(last_hidden * real, features * real)

    def layer_weights(self, layer: int) -> dict[str, Tensor]:
        """Weights of decoder layer `layer` by Hugging Face name without prefix, e.g. `self_attn.q_proj.weight`."""
        weights: dict[str, Tensor] = self._layers[layer].state_dict()
        return weights

    def shard(self, mesh: DeviceMesh) -> None:
        """Keep of every decoder layer this process's rows only; a layer is whole while it runs, and then no more.

        Every process of `mesh` must run the target equally often from now on. Embedding, final norm and head stay
        whole: those that train a drafter share them.
        """
        for layer in self._layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)

    @torch.no_grad()
    def logits(self, last_hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of states [..., d] after the final norm, soft-capped if the model does that."""
        logits: Tensor = self._model.get_output_embeddings()(last_hidden).float()
        return logits if self._soft_cap is None else torch.tanh(logits / self._soft_cap) * self._soft_cap

    @torch.inference_mode()
    def _probe_head(self) -> None:
        """Compare our logits with the model's own: some models scale what goes into or comes out of the head."""
        tokens = torch.arange(_PROBE_LENGTH) % self.info.vocab_size
        ours = self.logits(self.forward(tokens, self.new_cache(_PROBE_LENGTH)).last_hidden)
        theirs = self._model(tokens.unsqueeze(0)).logits.squeeze(0).float()
        error = (ours - theirs).abs().max() / theirs.abs().max().clamp_min(1.0)
        if error > _PROBE_TOLERANCE:
            raise CompatibilityError(
                f"{self.info.name}: {type(self._model).__name__} does not compute logits as head(last hidden state) "
                f"(they differ by {error:.1%}); this model cannot be a target yet"
            )


class _Taps:
    """Hooks that keep the outputs of the tapped layers during one forward; id -1 is what enters the first layer."""

    def __init__(self, layers: Sequence[Any], taps: Sequence[int]) -> None:
        self._layers = layers
        self._taps = taps
        self._handles: list[Any] = []
        self._outputs: dict[int, Tensor] = {}

    def __enter__(self) -> "_Taps":
        for tap in self._taps:
            if tap == AFTER_NORM:
                continue
            if tap == EMBEDDING:
                self._handles.append(self._layers[0].register_forward_pre_hook(self._keep_input, with_kwargs=True))
            else:
                self._handles.append(self._layers[tap].register_forward_hook(self._keeper(tap)))
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def features(self, last_hidden: Tensor) -> Tensor:
        """[B, T, m * d] in tap order, of the forward that ended in `last_hidden` [B, T, d]."""
        self._outputs[AFTER_NORM] = last_hidden
        tapped = [self._outputs[tap] for tap in self._taps]
        return torch.cat(tapped, -1) if tapped else last_hidden.new_empty(*last_hidden.shape[:-1], 0)

    def _keep_input(self, module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._outputs[-1] = inputs[0] if inputs else named["hidden_states"]

    def _keeper(self, tap: int) -> Any:
        def keep(module: Any, inputs: Any, output: Any) -> None:
            self._outputs[tap] = output[0] if isinstance(output, tuple) else output

        return keep


def load_transformers(path: Path, name: str, dtype: torch.dtype) -> TransformersTarget:
    """The model of a Hugging Face directory, run by transformers; no code from the directory is executed.

    Raises:
        FormatError: transformers cannot load it.
        CompatibilityError: it cannot be a target.
    """
    read_config(path)
    files, auto_model = weight_files(path), _transformers().AutoModelForCausalLM
    try:
        model = auto_model.from_pretrained(path, dtype=dtype, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise FormatError(f"transformers cannot load {name}: {first_line}") from error
    identity = remembered_hash(files, lambda: weights_hash(read_weights(path)))
    return TransformersTarget(model, name, identity, template_hash(read_chat_template(path)))


def refuse_unrollable(model: Any, name: str) -> None:
    """CompatibilityError for a model with state beside keys and values, as its configuration or its cache shows."""
    config = model.config.get_text_config(decoder=True)
    declared = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ()
    found = sorted(set(declared) - _ATTENTION)
    if not found and getattr(model, "_is_stateful", False):
        found = ["recurrent state"]
    if not found:
        cache = _transformers().DynamicCache(config=config)
        found = sorted({type(layer).__name__ for layer in cache.layers} - _CROPPABLE)
    if found:
        raise CompatibilityError(
            f"{name} (model_type {config.model_type}) has layers of kind {', '.join(found)}: their state cannot be "
            "rolled back after a rejected draft; use a model with plain attention"
        )


def decoder_layers(model: Any, count: int, name: str) -> Sequence[Any]:
    """The `count` decoder layers of the model's backbone; CompatibilityError if they are not found."""
    for module in model.base_model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count:
            return list(module)
    raise CompatibilityError(f"{name}: no list of {count} decoder layers found in {type(model).__name__}")


def _cache_argument(model: Any) -> str:
    """transformers renamed `past_key_values` to `cache` during its version 5."""
    return "cache" if "cache" in inspect.signature(model.base_model.forward).parameters else "past_key_values"


def _transformers() -> Any:
    """The optional package, imported on first use: it takes seconds."""
    try:
        import transformers
    except ImportError as error:
        raise DependencyError("this model needs transformers: pip install 'dspark[hf]'") from error
    return transformers
