"""The state of one request, and what it may not be."""

from collections.abc import Sequence
from dataclasses import replace

from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.params import check_sampling
from dspark.core.penalties import TokenHistory
from dspark.core.tau import Round, RoundTally
from dspark.drafters.prompt_lookup import LookupIndex
from dspark.engine.observer import RoundMemory, RoundObserver, Unobserved
from dspark.engine.options import DecodeOptions
from dspark.engine.prompts import token_ids
from dspark.engine.result import Commit
from dspark.engine.sampler import RequestSampler
from dspark.engine.stops import Detokeniser, Output
from dspark.errors import CapacityError, ConfigError
from dspark.types import Drafter, SamplingParams, TargetInfo, TokenLogprob, Verdict


class Request:
    """Committed tokens, the sampler, the counts and the observer of one request; whoever decodes it keeps its caches.

    Those hold, between rounds, every committed token but the last, the anchor of the next round. `memory` is what of
    them wants to know how rounds went.
    """

    def __init__(
        self,
        info: TargetInfo,
        drafter: Drafter | None,
        options: DecodeOptions,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        detokeniser: Detokeniser | None = None,
        observer: RoundObserver | None = None,
    ) -> None:
        check_sampling(params, info.vocab_size)
        self.prompt_ids = tuple(token_ids(prompt_ids))
        check_prompt(self.prompt_ids, info)
        self.context = info.max_positions
        self.limit = limit = min(params.max_tokens, self.context - len(self.prompt_ids))
        end_ids = params.stop_token_ids if params.ignore_eos else (*params.stop_token_ids, *info.eos_token_ids)
        self.output = Output(limit, end_ids, params.stop, detokeniser)
        self.max_drafts = max_drafts(drafter, options)
        self.lookup = None if options.lookup is None else LookupIndex(options.lookup, self.prompt_ids)
        longest = max(self.max_drafts, 0 if options.lookup is None else options.lookup.drafts)
        self.capacity = min(self.context, len(self.prompt_ids) + limit + longest)
        vocabulary = DraftVocabulary(info.vocab_size, None if drafter is None else drafter.info.draft_token_ids)
        history = TokenHistory(self.prompt_ids)
        self.sampler = RequestSampler(params, vocabulary, history, options.rule, options.greedy_drafts)
        self.logprobs: list[TokenLogprob] = []
        self.tally = RoundTally()
        self.lookup_rounds = 0
        self.observer: RoundObserver = observer or Unobserved()
        self.memory: RoundMemory | None = None

    @property
    def length(self) -> int:
        """Committed tokens, prompt included; the anchor stands at position length - 1."""
        return len(self.prompt_ids) + len(self.output.token_ids)

    @property
    def anchor(self) -> int:
        """The last committed token."""
        return self.output.token_ids[-1]

    @property
    def room(self) -> int:
        """Drafts that the drafter may make for the next round: the verified block must end inside the context."""
        return min(self.max_drafts, self.context - self.length)

    def copies(self) -> list[int]:
        """Drafts of the next round that need no drafter, because the text repeats itself; often none."""
        return [] if self.lookup is None else self.lookup.propose(self.context - self.length)

    def commit_first(self, verdict: Verdict) -> Commit:
        """Take in the token that the prompt's forward yields."""
        self.tally.first_tokens += 1
        return self._take([verdict.token], verdict)

    def commit_round(
        self, drafts: Sequence[int], verdict: Verdict, copied: bool = False, drafted: int | None = None
    ) -> Commit:
        """Take in the outcome of a round: accepted drafts and the token after them, up to where the text ends.

        `drafts` were verified, of `drafted` that were made (None: of no more).

        Rounds of `copied` drafts count, but say nothing of the drafter: its observer and its memory are not told.
        """
        commit = self._take([*drafts[: verdict.accepted], verdict.token], verdict)
        emitted = len(commit.token_ids)
        ended = self.output.ended_by_token and emitted <= verdict.accepted
        accepted = emitted if ended else verdict.accepted
        entry = Round(len(drafts) if drafted is None else drafted, len(drafts), accepted, emitted, ended)
        self.tally.add(entry)
        if copied:
            self.lookup_rounds += 1
        else:
            self._tell(entry)
        return commit

    def _tell(self, entry: Round) -> None:
        self.observer.judged(entry)
        if self.memory is not None:
            self.memory.judged(entry)

    def _take(self, tokens: Sequence[int], verdict: Verdict) -> Commit:
        commit = self.output.take(tokens)
        if verdict.logprobs:
            commit = replace(commit, logprobs=verdict.logprobs[: len(commit.token_ids)])
            self.logprobs += commit.logprobs
        self.sampler.commit(commit.token_ids)
        if self.lookup is not None:
            self.lookup.append(commit.token_ids)
        return commit


def max_drafts(drafter: Drafter | None, options: DecodeOptions) -> int:
    """Most drafts of a round: the drafter's gamma, or the cap below it."""
    if drafter is None:
        return 0
    cap = options.max_draft_tokens
    return drafter.info.gamma if cap is None else min(cap, drafter.info.gamma)


def check_prompt(prompt_ids: Sequence[int], info: TargetInfo) -> None:
    """Refuse prompts that are empty, hold foreign ids or leave no room for an answer.

    Raises:
        ConfigError: no tokens, or ids outside the vocabulary.
        CapacityError: the prompt fills the context.
    """
    if not prompt_ids:
        raise ConfigError("the prompt has no tokens; at least one is needed")
    foreign = next((token for token in prompt_ids if not 0 <= token < info.vocab_size), None)
    if foreign is not None:
        raise ConfigError(f"the prompt holds token id {foreign}, outside the {info.vocab_size} ids of {info.name}")
    if len(prompt_ids) >= info.max_positions:
        raise CapacityError(
            f"the prompt has {len(prompt_ids)} tokens and {info.name} has {info.max_positions} positions, of which the "
            f"answer needs at least one; shorten the prompt to {info.max_positions - 1} tokens"
        )
