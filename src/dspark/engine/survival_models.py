"""The survival models beside a drafter's weights, for requests of any sampling."""

from functools import lru_cache

from dspark.calibration.file import FILE_NAME, Pair, Sampling, load_calibrations
from dspark.calibration.records import DraftMode
from dspark.calibration.signals import SurvivalModel
from dspark.core.params import is_greedy
from dspark.core.rejection import RejectionRule
from dspark.engine.confidences import ModelOf, uncalibrated
from dspark.engine.models import Models
from dspark.errors import DsparkError
from dspark.types import SamplingParams

MOST_KEPT = 256
"""Most samplings whose model is remembered: clients may send a new temperature with every request."""


def survival_models(models: Models, rule: RejectionRule, greedy_drafts: bool = False) -> tuple[ModelOf, str | None]:
    """(what was fitted for requests of a sampling, what a user should know where nothing was).

    A temperature that was not calibrated takes the nearest that was, of drafts chosen and judged alike.
    """
    if models.drafter is None or models.drafter_directory is None:
        return uncalibrated, None
    path, info = models.drafter_directory / FILE_NAME, models.target.info
    try:
        pair = Pair(models.drafter_hash() or "", info.weights_hash, info.template_hash, models.drafter.info.gamma)
        known = load_calibrations(path, pair)
    except DsparkError as error:
        return uncalibrated, f"confidences are taken as the drafter states them: {error}"

    @lru_cache(maxsize=MOST_KEPT)
    def model_at(mode: DraftMode, temperature: float) -> SurvivalModel | None:
        alike = [one for one in known if _chosen_alike(one.sampling, mode, rule, temperature)]
        nearest = min(alike, key=lambda one: abs(one.sampling.temperature - temperature), default=None)
        return None if nearest is None else nearest.model

    def model_of(params: SamplingParams) -> SurvivalModel | None:
        greedy = is_greedy(params)
        mode = DraftMode.GREEDY if greedy or greedy_drafts else DraftMode.SAMPLED
        return model_at(mode, 0.0 if greedy else params.temperature)

    return model_of, None


def _chosen_alike(sampling: Sampling, mode: DraftMode, rule: RejectionRule, temperature: float) -> bool:
    greedy = sampling.temperature == 0
    return sampling.draft_mode is mode and sampling.rule == type(rule).__name__ and greedy == (temperature == 0)
