"""DSpark: the DFlash backbone with a sequential head and a confidence head (both optional: without them it is DFlash).

Shapes: A blocks, G slots (gamma), T context tokens, d width, m taps, R rank, V vocabulary, V_draft draft vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dspark.core.factored_logits import FactoredLogits
from dspark.drafters.backbone import DFlash
from dspark.drafters.confidence import ConfidenceHead
from dspark.drafters.config import DrafterConfig
from dspark.drafters.drafter_module import check_shared
from dspark.drafters.heads import MarkovHead, build_head, choose_among
from dspark.drafters.packing import PackedProduct
from dspark.errors import ConfigError
from dspark.nn.compiled.chain import CompiledChain
from dspark.nn.compiled.linear import CompiledLinear
from dspark.types import NOT_RECORDED, Acceptance, Cache, DrafterInfo, LikeliestDrafts

HEAD_ROWS = 64
"""Rows that the LM head multiplies at once while drafting: its weights are read once for them, its logits stay few."""


class DSpark(DFlash):
    """A trainable drafter and, at the same time, the `Drafter` that the engine runs.

    `embedding` [V, d] and `head` [V, d] are the target's (frozen, aliased: neither parameters nor saved). With a
    pruned draft vocabulary, `draft_token_ids` [V_draft] lists the kept target ids in draft order and the head keeps
    their rows (a head of V_draft rows is taken as kept already); the sequential head still embeds target ids.
    """

    def __init__(
        self,
        config: DrafterConfig,
        embedding: Tensor,
        head: Tensor,
        draft_token_ids: Tensor | None = None,
        name: str = "dspark",
        acceptance: Acceptance = NOT_RECORDED,
    ) -> None:
        check_shared(config, embedding, head, draft_token_ids)
        super().__init__(config, embedding)
        self.markov_head = build_head(config)
        self.confidence_head = ConfidenceHead(config) if config.enable_confidence_head else None
        self._chain: CompiledChain | None = None
        self.share_head(head, draft_token_ids)
        self.info = DrafterInfo(
            name, config.block_size, config.target_layer_ids, config.vocab_size, draft_token_ids, acceptance
        )

    def draft_logits(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """Teacher-forced logits [A, G, V_draft] of hidden [A, G, d] and the token before each slot [A, G].

        `previous[:, 0]` is the anchor, the rest are the gold tokens of slots 0 to G - 2, all as target ids.
        """
        logits = self.base_logits(hidden)
        if self.markov_head is None:
            return logits
        return self.biased(logits, self.markov_head, self.markov_latents(hidden, previous))

    def biased(self, base: Tensor, head: MarkovHead, latent: Tensor) -> Tensor:
        """Draft logits of base logits [..., V_draft] and latents [..., R]; -inf for tokens outside the `candidates`."""
        if self.config.candidates is None:
            return base + head.bias(latent)
        return choose_among(base, self.config.candidates, head, latent)

    def unpacked(self) -> tuple[nn.Module, ...]:
        """W2, if only the candidates' rows of it are read and it is never multiplied."""
        return () if self.markov_head is None or self.config.candidates is None else (self.markov_head.markov_w2,)

    def factors(self, hidden: Tensor, previous: Tensor, supervised: Tensor) -> FactoredLogits:
        """Logits [N, V_draft] of the `supervised` [A, G] slots as factors: [h ; latent] [head ; W2]^T."""
        if self.markov_head is None:
            return FactoredLogits(hidden[supervised], self.head)
        # Latents need whole blocks, because a head may be recurrent.
        latents = self.markov_latents(hidden, previous)[supervised]
        return FactoredLogits(hidden[supervised], self.head, latents, self.markov_head.markov_w2.weight)

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

    def chain(self) -> CompiledChain | None:
        """The sequential head in one compiled call: a Markov head over all of the draft vocabulary, packed for it."""
        head = self.markov_head
        if type(head) is not MarkovHead or self.config.candidates is not None:
            return None
        packed = head.markov_w2
        if not isinstance(packed, PackedProduct) or not isinstance(packed.product, CompiledLinear):
            return None
        if self._chain is None:
            self._chain = CompiledChain(head.markov_w1.weight, packed.product, self.draft_token_ids)
        return self._chain

    def begin(self, anchor: int, cache: Cache, gamma: int | None = None) -> "DSparkBlock":
        """Run the backbone on [anchor, mask x (gamma - 1)]; the anchor stands at position `cache.length`.

        Raises ConfigError when `gamma` is not in [1, block_size].
        """
        return DSparkBlock(self.begin_each([anchor], [cache], self.config.block_size if gamma is None else gamma))

    def begin_each(self, anchors: Sequence[int], caches: Sequence[Cache], gamma: int) -> "DSparkBlocks":
        """`begin` for B requests in one pass over the backbone.

        Raises:
            ConfigError: `gamma` is not in [1, block_size].
            CapacityError: a block does not fit the pages of its request.
        """
        if not 1 <= gamma <= self.config.block_size:
            raise ConfigError(f"gamma {gamma} is outside [1, {self.config.block_size}], the drafter's block size")
        return DSparkBlocks(self, self.blocks_states(anchors, caches, gamma))


class DSparkBlocks:
    """B blocks being drafted left to right: `hidden` [B, gamma, d] is known, the sequential head takes its steps."""

    def __init__(self, drafter: DSpark, hidden: Tensor) -> None:
        self.hidden = hidden
        self._drafter = drafter
        self._base = hidden.new_empty(len(hidden), 0, 0)  # logits of the slots `_first` ... `_ahead` - 1
        self._first = self._ahead = 0
        self._state: Tensor | None = None
        self._slot = 0

    @torch.no_grad()
    def step(self, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        """(float32 logits [B, V_draft] of the next slots, their confidence logits [B]) given the tokens before [B]."""
        hidden, logits, head = self.hidden[:, self._slot], self._base_logits(), self._drafter.markov_head
        embedded = None if head is None else head.embed(previous.to(hidden.device))
        if head is not None and embedded is not None:
            latent, self._state = head.step(hidden, embedded, self._state)
            logits = self._drafter.biased(logits, head, latent)
        confidence = self._drafter.confidence_of(hidden, embedded)
        self._slot += 1
        return logits.float(), confidence

    @torch.no_grad()
    def likeliest(self, previous: Tensor, slots: int) -> LikeliestDrafts | None:
        """`GreedyBlocks.likeliest`, by a compiled chain."""
        chain = self._drafter.chain()
        if chain is None:
            return None
        wide, parts, before = max(HEAD_ROWS // len(self.hidden), 1), [], previous
        for first in range(0, slots, wide):
            base = self._drafter.base_logits(self.hidden[:, first : min(first + wide, slots)])
            parts.append(chain.run(base, before))
            before = parts[-1][0][:, -1]
        tokens, peaks, entropies = (torch.cat(columns, dim=1) for columns in zip(*parts, strict=True))
        return LikeliestDrafts(tokens, self._confidences(previous, tokens), peaks, entropies)

    def _confidences(self, previous: Tensor, tokens: Tensor) -> Tensor | None:
        """Confidence logits [B, S] of drafts `tokens` [B, S] behind the tokens `previous` [B]."""
        head, before = self._drafter.markov_head, torch.cat((previous[:, None], tokens[:, :-1]), dim=1)
        embedded = None if head is None else head.embed(before)
        return self._drafter.confidence_of(self.hidden[:, : tokens.shape[1]], embedded)

    def _base_logits(self) -> Tensor:
        """[B, V_draft] of the slot, computed for as many slots together as keep the head's product narrow."""
        if self._slot == self._ahead:
            self._first, self._ahead = self._slot, self._slot + max(HEAD_ROWS // len(self.hidden), 1)
            self._base = self._drafter.base_logits(self.hidden[:, self._first : self._ahead])
        return self._base[:, self._slot - self._first]


class DSparkBlock:
    """One block being drafted: `DSparkBlocks` of a single request."""

    def __init__(self, blocks: DSparkBlocks) -> None:
        self.hidden = blocks.hidden[0]
        self._blocks = blocks

    def step(self, previous: int) -> tuple[Tensor, float | None]:
        """(float32 logits [V_draft] of the next slot, its confidence logit) given the token before it."""
        logits, confidence = self._blocks.step(torch.tensor([previous]))
        return logits[0], None if confidence is None else float(confidence)
