"""What records accept, how they join and how they split."""

from dataclasses import replace

import numpy as np
import pytest

from dspark.calibration.records import concatenate, split_by_request
from dspark.errors import FormatError
from tests.calibration.rounds import records


def test_labels_are_surviving_prefixes_and_an_end_token_cuts_them():
    rounds = records([0, 2, 2], judged=np.array([3, 3, 2]))
    assert rounds.labels.tolist() == [[0, 0, 0], [1, 1, 0], [1, 1, 0]]
    assert rounds.valid.tolist() == [[True] * 3, [True] * 3, [True, True, False]]


def test_absent_signals_are_none():
    signals = records([0], confidence=np.full((1, 3), np.nan)).signals
    assert signals.confidence is None
    assert (signals.logits == 0).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("peak", np.zeros((2, 2))),
        ("domain", np.array(["math"])),
        ("confidence", np.zeros(2)),
        ("confidence", np.array([[0.0, np.nan, 0.0], [0.0, 0.0, 0.0]])),
        ("peak", np.array([[0.0, np.inf, 0.0], [0.0, 0.0, 0.0]])),
        ("accepted", np.array([4, 0])),
        ("judged", np.array([0, 3])),
    ],
)
def test_inconsistent_fields_are_named(name, value):
    with pytest.raises(FormatError, match=name):
        replace(records([1, 1]), **{name: value})


def test_records_of_different_width_do_not_mix():
    with pytest.raises(FormatError, match="gamma 2 and 3"):
        concatenate([records([1]), records([1], gamma=2)])
    with pytest.raises(FormatError, match="no records"):
        concatenate([])


def test_the_split_shares_no_prompt_and_reaches_every_domain():
    rng = np.random.default_rng(0)
    rounds = records(
        [1] * 400,
        request=rng.integers(0, 2**63, 40, dtype=np.uint64)[np.arange(400) % 40],
        domain=np.array(["math", "chat"])[np.arange(400) % 2],
    )
    fit, report = split_by_request(rounds)
    assert set(fit.request.tolist()).isdisjoint(report.request.tolist())
    assert len(fit) == len(report) == 200
    assert set(fit.domain) == set(report.domain) == {"math", "chat"}
    shuffled = rounds.take(rng.permutation(400))
    assert set(split_by_request(shuffled)[0].request) == set(fit.request)


def test_a_prompt_of_two_domains_is_on_one_side_only():
    """Catches a split within each domain, which may fit on a prompt and report on it."""
    numbers = np.arange(10, dtype=np.uint64)
    twice = records([1] * 20, request=np.concatenate((numbers, numbers)), domain=np.repeat(["chat", "math"], 10))
    twice = twice.take(np.r_[0:10, 11:20])  # so that ranks within the two domains differ
    fit, report = split_by_request(twice)
    assert set(fit.request.tolist()).isdisjoint(report.request.tolist())
    assert set(fit.domain) == set(report.domain) == {"chat", "math"}


def test_domains_of_one_prompt_reach_the_report():
    domains = np.array([f"domain {k}" for k in range(10)])
    fit, report = split_by_request(records([1] * 10, domain=domains))
    assert len(fit) == len(report) == 5


@pytest.mark.parametrize(("count", "share"), [(1, 0.5), (4, 0.0), (4, 1.0)])
def test_a_split_with_an_empty_side_is_refused(count, share):
    with pytest.raises(FormatError, match="prompts"):
        split_by_request(records([1] * count), share)
