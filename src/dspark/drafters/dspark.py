"""DSpark: the DFlash backbone with a sequential head and a confidence head (both optional: without them it is DFlash).

Shapes: A blocks, G slots (gamma), T context tokens, d width, m taps, R rank, V vocabulary, V_draft draft vocabulary.
"""

import torch
from torch import Tensor, nn

from dspark.drafters.backbone import DFlash
from dspark.drafters.cache import DraftCache
from dspark.drafters.confidence import ConfidenceHead
from dspark.drafters.config import DrafterConfig
from dspark.drafters.heads import build_head
from dspark.errors import ConfigError
from dspark.nn.linear import Linear
from dspark.types import NOT_RECORDED, Acceptance, Cache, DrafterInfo


class DSpark(DFlash):
    """A trainable drafter and, at the same time, the `Drafter` that the engine runs.

    `embedding` [V, d] and `head` [V, d] are the target's (frozen, aliased: neither parameters nor saved). With a
    pruned draft vocabulary, `draft_token_ids` [V_draft] lists the kept target ids in draft order and the head keeps
    their rows (a head of V_draft rows is taken as kept already); the sequential head still embeds target ids.
    """

    head: Tensor
    draft_token_ids: Tensor | None

    def __init__(
        self,
        config: DrafterConfig,
        embedding: Tensor,
        head: Tensor,
        draft_token_ids: Tensor | None = None,
        name: str = "dspark",
        acceptance: Acceptance = NOT_RECORDED,
    ) -> None:
        _check_shared(config, embedding, head, draft_token_ids)
        super().__init__(config, embedding)
        self.markov_head = build_head(config)
        self.confidence_head = ConfidenceHead(config) if config.enable_confidence_head else None
        self.register_buffer("head", _draft_rows(head.detach(), draft_token_ids), persistent=False)
        self.packed_head: Linear | None = None
        self.register_buffer("draft_token_ids", draft_token_ids, persistent=False)
        self.info = DrafterInfo(
            name, config.block_size, config.target_layer_ids, config.vocab_size, draft_token_ids, acceptance
        )

    def initialize(self, generator: torch.Generator, std: float = 0.02) -> None:
        """Fresh weights as DeepSpec draws them: matrices from N(0, std^2), biases 0, norms 1."""
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=std, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def base_logits(self, hidden: Tensor) -> Tensor:
        """U = head(h), [..., V_draft] of hidden states [..., d]."""
        if self.packed_head is not None:
            return self.packed_head(hidden)
        return nn.functional.linear(hidden, self.head.to(hidden.dtype))

    def draft_logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Teacher-forced logits [A, G, V_draft] of hidden [A, G, d] and the token before each slot [A, G].

        `previous[:, 0]` is the anchor, the rest are the gold tokens of slots 0 to G - 2, all as target ids.
        """
        logits = self.base_logits(hidden)
        if self.markov_head is None:
            return logits
        return logits + self.markov_head.bias(self.markov_latents(hidden, previous))

    def markov_latents(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Latents [A, G, R] of the sequential head, so that logits = [h ; latent] [head ; W2]^T in one product.

        Raises ConfigError at rank 0, where there are none.
        """
        if self.markov_head is None:
            raise ConfigError("this drafter has no sequential head (markov_rank 0), so it has no latents")
        return self.markov_head.latents(hidden, self.markov_head.embed(previous))

    def confidence_logits(self, hidden: Tensor, previous: Tensor) -> Tensor | None:
        """Confidence logits [A, G], or None without a confidence head; arguments as for `draft_logits`."""
        return self.confidence_of(hidden, None if self.markov_head is None else self.markov_head.embed(previous))

    def confidence_of(self, hidden: Tensor, embedded: Tensor | None) -> Tensor | None:
        """`confidence_logits` where the sequential head's embeddings of the tokens before are at hand."""
        if self.confidence_head is None:
            return None
        logits: Tensor = self.confidence_head(hidden, embedded if self.config.confidence_reads_markov else None)
        return logits

    def begin(self, anchor: int, cache: Cache, gamma: int | None = None) -> "DSparkBlock":
        """Run the backbone on [anchor, mask x (gamma - 1)]; the anchor stands at position `cache.length`.

        Raises ConfigError when `gamma` is not in [1, block_size].
        """
        gamma = self.config.block_size if gamma is None else gamma
        if not 1 <= gamma <= self.config.block_size:
            raise ConfigError(f"gamma {gamma} is outside [1, {self.config.block_size}], the drafter's block size")
        return DSparkBlock(self, self.block_states(anchor, DraftCache.own(cache, self.config), gamma))


class DSparkBlock:
    """One block being drafted left to right: hidden [gamma, d] is known, the sequential head takes its steps."""

    def __init__(self, drafter: DSpark, hidden: Tensor) -> None:
        self.hidden = hidden
        self._drafter = drafter
        with torch.no_grad():
            self.base_logits = drafter.base_logits(hidden)
        self._state: Tensor | None = None
        self._slot = 0

    @torch.no_grad()
    def step(self, previous: int) -> tuple[Tensor, float | None]:
        """(float32 logits [V_draft] of the next slot, its confidence logit) given the token before it."""
        slot = slice(self._slot, self._slot + 1)  # a matrix of one row, because packed products take no vectors
        hidden, logits = self.hidden[slot], self.base_logits[slot]
        token = torch.tensor([previous], device=hidden.device)
        head = self._drafter.markov_head
        embedded = None if head is None else head.embed(token)
        if head is not None and embedded is not None:
            latent, self._state = head.step(hidden, embedded, self._state)
            logits = logits + head.bias(latent)
        confidence = self._drafter.confidence_of(hidden, embedded)
        self._slot += 1
        return logits[0].float(), None if confidence is None else float(confidence)


def _draft_rows(head: Tensor, draft_token_ids: Tensor | None) -> Tensor:
    if draft_token_ids is None or len(head) == len(draft_token_ids):
        return head
    return head[draft_token_ids]


def _check_shared(config: DrafterConfig, embedding: Tensor, head: Tensor, draft_token_ids: Tensor | None) -> None:
    width = config.hidden_size
    for name, tensor, rows in (
        ("embedding", embedding, {config.vocab_size}),
        ("head", head, {config.vocab_size, config.draft_vocabulary}),
    ):
        if tensor.shape[0] not in rows or tensor.shape[1] != width:
            raise ConfigError(f"the target's {name} is {list(tensor.shape)}, expected {sorted(rows)} rows of {width}")
    kept = None if draft_token_ids is None else len(draft_token_ids)
    if kept != config.draft_vocab_size:
        raise ConfigError(f"draft_vocab_size is {config.draft_vocab_size}, but {kept} draft token ids were given")
