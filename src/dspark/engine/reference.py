"""The reference loop: one request at a time, each step in the open. Faster loops are checked against it.

A round: the drafter proposes a block after the anchor, the target judges it in one forward, the accepted drafts and
one token of the target's own are committed, and both caches forget the rest. Without a drafter every block is
empty, which is plain decoding. Shapes: k drafts, d width, m taps.
"""

import time
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from dspark.core.admission import DraftPrefix
from dspark.engine.observer import RoundMemory, RoundObserver, Unobserved
from dspark.engine.options import DecodeOptions
from dspark.engine.request import Request
from dspark.engine.result import Commit, GenerationResult, Times
from dspark.engine.sampler import RoundSampler
from dspark.engine.stops import Detokeniser
from dspark.engine.stopwatch import Clock, Stopwatch
from dspark.errors import CompatibilityError
from dspark.types import Drafter, SamplingParams, Target, as_ids


class ReferenceLoop:
    """Decodes requests one after another with a target and, optionally, a drafter."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None = None,
        options: DecodeOptions | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        if drafter is not None and drafter.info.vocab_size != target.info.vocab_size:
            raise CompatibilityError(
                f"drafter {drafter.info.name} is for a vocabulary of {drafter.info.vocab_size} tokens, target "
                f"{target.info.name} has {target.info.vocab_size}; use the drafter's own target"
            )
        self.options = DecodeOptions() if options is None else options
        drafts = self.options.max_draft_tokens != 0  # without drafts, neither taps nor context K/V are wanted
        self.target, self.drafter = target, drafter if drafts else None
        self.clock = clock

    def start(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        detokeniser: Detokeniser | None = None,
        observer: RoundObserver | None = None,
    ) -> "Generation":
        """Begin a request, its rounds watched by `observer`; nothing runs before its commits are asked for.

        Raises:
            ConfigError: parameters or prompt cannot be used.
            CapacityError: the prompt leaves no room for an answer.
        """
        request = Request(self.target.info, self.drafter, self.options, prompt_ids, params, detokeniser, observer)
        return Generation(self, request)

    def generate(
        self,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        detokeniser: Detokeniser | None = None,
        observer: RoundObserver | None = None,
    ) -> GenerationResult:
        """Decode a request to its end; arguments and errors as in `start`."""
        return self.start(prompt_ids, params, detokeniser, observer).finish()


class Generation:
    """One request on its way: iterate over its commits as they come, `finish` for the result."""

    def __init__(self, loop: ReferenceLoop, request: Request) -> None:
        self._target, self._drafter, self._options = loop.target, loop.drafter, loop.options
        self._taps = () if loop.drafter is None else loop.drafter.info.target_layer_ids
        self._request = request
        self._target_cache = loop.target.new_cache(request.capacity)
        self._draft_cache = None if loop.drafter is None else loop.drafter.new_cache(request.capacity)
        cache: object = self._draft_cache
        request.memory = cache if isinstance(cache, RoundMemory) else None
        self._watch = Stopwatch(loop.clock)
        self._texts: list[str] = []
        self._commits = self._run()

    def __iter__(self) -> Iterator[Commit]:
        """The commits not yet taken: the first token, then one commit per round."""
        return self._commits

    def finish(self) -> GenerationResult:
        """Decode to the end and return everything."""
        for _ in self._commits:
            pass
        output, seconds = self._request.output, self._watch.seconds
        assert output.finish_reason is not None
        return GenerationResult(
            token_ids=tuple(output.token_ids),
            text="".join(self._texts),
            finish_reason=output.finish_reason,
            tally=self._request.tally,
            lookup_rounds=self._request.lookup_rounds,
            logprobs=tuple(self._request.logprobs),
            times=Times(**seconds),
        )

    def _run(self) -> Iterator[Commit]:
        commit = self._prefill()
        self._texts.append(commit.text)
        yield commit
        while self._request.output.finish_reason is None:
            commit = self._round()
            self._texts.append(commit.text)
            yield commit

    @torch.inference_mode()
    def _prefill(self) -> Commit:
        self._watch.start()
        prompt, size = as_ids(self._request.prompt_ids), self._options.prefill_chunk
        for first in range(0, len(prompt), size):
            output = self._target.forward(prompt[first : first + size], self._target_cache, self._taps)
            self._extend(output.features)
        logits = self._target.logits(output.last_hidden[-1:])
        verdict = self._request.sampler.round(start=0, max_drafts=0).judge(logits)
        commit = self._request.commit_first(verdict)
        self._watch.lap("prefill")
        return commit

    @torch.inference_mode()
    def _round(self) -> Commit:
        self._watch.start()
        request = self._request
        sampler = request.sampler.round(len(request.output.token_ids), request.room)
        copies = request.copies()
        if copies:
            sampler.copy(copies)
        else:
            self._draft(sampler)
        block = as_ids([request.anchor, *sampler.drafts])
        output = self._target.forward(block, self._target_cache, self._taps)
        verdict = sampler.judge(self._target.logits(output.last_hidden))
        if not copies:
            self._show_laws(sampler)
        kept = 1 + verdict.accepted
        self._target_cache.rollback(request.length - 1 + kept)
        commit = request.commit_round(sampler.drafts, verdict, bool(copies))
        self._watch.lap("verify")
        if request.output.finish_reason is None:
            self._extend(output.features[:kept])
            self._watch.lap("draft")
        return commit

    def _draft(self, sampler: RoundSampler) -> None:
        """Propose a block, slot by slot, until the policy refuses a slot or nothing can be drawn for it.

        The policy is not asked in rounds that the observer wants in full.
        """
        request = self._request
        if self._drafter is None or self._draft_cache is None or request.room == 0:
            return
        full = self._wanted_in_full(self._drafter.info.gamma)
        block = self._drafter.begin(request.anchor, self._draft_cache, request.room)
        previous: int | None = request.anchor
        confidences: tuple[float | None, ...] = ()
        while previous is not None and len(sampler.drafts) < request.room:
            logits, confidence = block.step(previous)
            request.observer.slot(logits, confidence)
            confidences = (*confidences, confidence)
            admitted = full or self._admits(DraftPrefix(request.anchor, tuple(sampler.drafts), confidences))
            previous = sampler.draft(logits) if admitted else None
        self._draft_cache.rollback(request.length - 1)
        self._watch.lap("draft")

    def _show_laws(self, sampler: RoundSampler) -> None:
        observed = not isinstance(self._request.observer, Unobserved)  # laws over the vocabulary cost time
        laws = sampler.laws() if observed else None
        if laws is not None:
            self._request.observer.laws(*laws)

    def _wanted_in_full(self, gamma: int) -> bool:
        request = self._request
        fits = request.length + gamma <= request.context
        return fits and request.observer.full_width(len(request.output.token_ids))

    def _admits(self, prefix: DraftPrefix) -> bool:
        self._watch.lap("draft")
        admitted = self._options.admits(prefix)
        self._watch.lap("schedule")
        return admitted

    def _extend(self, features: Tensor) -> None:
        """Show the drafter newly committed positions: never the anchor's, which the target has yet to run."""
        if self._drafter is not None and self._draft_cache is not None:
            self._drafter.extend(features, self._draft_cache)
