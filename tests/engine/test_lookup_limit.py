"""Copies are as long as pays: many where verification is flat, few where it is steep, none where plain is best."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.draft_limit import DraftLimit
from dspark.engine.lookup_limit import lookup_limit
from dspark.types import SamplingParams
from tests.engine.test_draft_limit import GREEDY, INFO, profiled

SAMPLED = SamplingParams(temperature=1.0)


@pytest.mark.parametrize(
    ("price", "copied"),
    [
        ([1.0, 1.001, 1.002, 1.003, 1.004], 4),
        ([1.0, 1.1, 1.2, 3.0, 4.0], 2),
        ([1.0, 1.6, 3.0, 4.0, 5.0], 1),
        ([1.0, 2.0, 3.0, 4.0, 5.0], None),
    ],
)
def test_the_length_follows_the_price(price: Sequence[float], copied: int | None) -> None:
    """Beside plain decoding at one token a second: E(1) = 1.74, E(2) = 2.32 for greedy requests."""
    expected = None if copied is None else PromptLookup(copied)
    assert lookup_limit(profiled(price), INFO, GREEDY, DraftLimit(0)) == expected


def test_a_good_drafter_leaves_less_to_copy() -> None:
    """Two drafts make 2.44 tokens in 1.45 s: a copy of one must beat 1.68 tokens a second."""
    profile = profiled([1.0, 1.25, 1.45, 4.0, 5.0])
    assert lookup_limit(profile, INFO, GREEDY, DraftLimit(0)) == PromptLookup(2)
    assert lookup_limit(profile, INFO, SAMPLED, DraftLimit(2)) is None


def test_laws_of_sampled_rows_are_paid_for() -> None:
    profile = profiled([1.0, 1.1, 1.2, 1.3, 1.4])
    assert lookup_limit(profile, INFO, SAMPLED, DraftLimit(0)) == PromptLookup(3)
    assert lookup_limit(profile, INFO, SAMPLED, DraftLimit(0), row_seconds=5.0) is None


def test_a_gain_within_the_noise_is_none() -> None:
    profile = profiled([1.0, 1.6, 3.0, 4.0, 5.0])
    assert lookup_limit(profile, INFO, GREEDY, DraftLimit(0)) == PromptLookup(1)
    noisy = replace(profile, table=replace(profile.table, noise=0.2))
    assert lookup_limit(noisy, INFO, GREEDY, DraftLimit(0)) is None


def test_without_a_clear_profile_copies_are_usual_beside_drafts_and_none_without() -> None:
    noisy = profiled([1.0, 1.5, 2.0, 2.5, 3.0])
    noisy = replace(noisy, table=replace(noisy.table, noise=5.0))
    for profile in (None, noisy):
        assert lookup_limit(profile, INFO, GREEDY, DraftLimit(4)) == PromptLookup()
        assert lookup_limit(profile, INFO, GREEDY, DraftLimit(0)) is None
