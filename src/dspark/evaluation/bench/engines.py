"""An engine for every arm, all on the same loaded models."""

import copy
import time
import warnings
from dataclasses import dataclass, field, replace

from dspark.core.rejection import TokenRejection
from dspark.drafters.drafter_module import DrafterModule
from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.core import EngineCore
from dspark.engine.engine_options import EngineOptions
from dspark.engine.models import Models
from dspark.engine.start_profile import start_profile
from dspark.engine.stopwatch import Clock
from dspark.engine.strategy import Strategy
from dspark.engine.survival_models import survival_models
from dspark.evaluation.bench.arms import Arm, DraftedBy
from dspark.scheduling.cost_table import CostTable

RULE = TokenRejection()


@dataclass(slots=True)
class ArmEngines:
    """Builds engines with empty caches. `mtp` are the models with an MTP drafter; without it, the arms it should
    draft for have the drafter's own first draft.

    `options` hold for all arms but for scheduler and strategy. With `lookup`, arms that draft whole blocks also copy
    where the text repeats itself. What rounds cost is measured with the first engine that drafts, or known from
    before. `notes` say what a user should know.
    """

    models: Models
    options: EngineOptions
    mtp: Models | None = None
    lookup: PromptLookup | None = None
    notes: list[str] = field(default_factory=list)
    _profiled: list[CostTable | None] = field(default_factory=list)

    def build(self, arm: Arm, clock: Clock = time.perf_counter, pages: int | None = None) -> EngineCore:
        """A fresh engine for `arm` with so many pages (None: as `options` say).

        Raises FormatError where there is no drafter.
        """
        pages = pages or self.options.pages
        options = replace(self.options, scheduler=arm.scheduler, strategy=arm.drafted_by, pages=pages)
        strategies = () if arm.drafted_by == "none" else (self._strategy(arm),)
        cost = self._cost(arm.drafted_by)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            core = EngineCore(self.models.target, strategies, options, cost, clock)
        for warning in caught:
            self._note(f"{arm.title}: {warning.message}")
        return core

    def _strategy(self, arm: Arm) -> Strategy:
        models = self._models(arm.drafted_by)
        drafter, _ = models.speculative()
        model_of, note = survival_models(models, RULE)
        self._note(note)
        if arm.drafted_by == "mtp" and self.mtp is None:
            self._note(f"{arm.title}: no MTP drafter is given (--mtp), so the drafter's first draft stands in for it")
        lookup = self.lookup if arm.drafts is None else None
        return Strategy(arm.drafted_by, at_most(drafter, arm.drafts), lookup, model_of)

    def _models(self, drafted_by: DraftedBy) -> Models:
        return self.mtp if drafted_by == "mtp" and self.mtp is not None else self.models

    def _cost(self, drafted_by: DraftedBy) -> CostTable | None:
        """What rounds with the drafter cost; nothing is decided by it without one, or with one draft a round."""
        if drafted_by != "drafter":
            return None
        if not self._profiled:
            profile = start_profile(self.models, requests=self.options.max_requests)
            self._profiled = [None if profile is None else profile.table]
        return self._profiled[0]

    def _note(self, note: str | None) -> None:
        if note is not None and note not in self.notes:
            self.notes.append(note)


def at_most(drafter: DrafterModule, drafts: int | None) -> DrafterModule:
    """`drafter` with blocks of at most `drafts`; it shares the weights, and is the drafter itself if None."""
    if drafts is None or drafts >= drafter.info.gamma:
        return drafter
    shorter = copy.copy(drafter)
    shorter.info = replace(drafter.info, gamma=drafts)
    return shorter
