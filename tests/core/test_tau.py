"""Accounting of rounds, on scripted ones."""

import pytest

from dspark.core.tau import Round, RoundTally


def tally(*rounds: Round, first_tokens: int = 0) -> RoundTally:
    result = RoundTally(first_tokens=first_tokens)
    for entry in rounds:
        result.add(entry)
    return result


def test_tau_is_accepted_plus_one_per_round() -> None:
    run = tally(Round(3, 3, 3, 4), Round(3, 3, 0, 1), Round(3, 3, 1, 2), first_tokens=1)
    assert run.tau == pytest.approx((4 + 1 + 2) / 3)
    assert run.tokens_per_target_forward == pytest.approx(7 / 3)
    assert run.output_tokens == 8


def test_accepted_stop_token_brings_no_bonus_and_cuts_the_block() -> None:
    run = tally(Round(7, 7, 2, 2, ended=True))
    assert run.tau == 2
    assert run.acceptance_by_position() == [1, 1]
    assert run.metrics()["drafted_tokens"] == 7


def test_last_round_is_not_clipped_for_tau_but_for_what_the_user_gets() -> None:
    run = tally(Round(4, 4, 4, 2))
    assert run.tau == 5
    assert run.tokens_per_target_forward == 2


def test_acceptance_by_position_unconditional_and_conditional() -> None:
    run = tally(Round(3, 3, 3, 4), Round(3, 3, 1, 2), Round(3, 3, 0, 1), Round(3, 3, 1, 2))
    assert run.acceptance_by_position() == [3 / 4, 1 / 4, 1 / 4]
    assert run.conditional_acceptance_by_position() == [3 / 4, 1 / 3, 1]


def test_positions_not_verified_do_not_count() -> None:
    run = tally(Round(3, 1, 1, 2), Round(3, 3, 2, 3), Round(3, 0, 0, 1))
    assert run.acceptance_by_position() == [1, 1, 0]
    assert run.conditional_acceptance_by_position() == [1, 1, 0]
    assert run.metrics()["verified_tokens"] == 4
    assert run.metrics()["accepted_tokens"] == 3


def test_merging_is_the_micro_average() -> None:
    one, two = tally(Round(3, 3, 3, 4), first_tokens=1), tally(*[Round(3, 3, 0, 1)] * 3, first_tokens=1)
    merged = RoundTally.merged([one, two])
    assert merged.tau == pytest.approx(7 / 4)
    assert merged.first_tokens == 2
    assert (one.rounds, two.rounds) == (1, 3)


def test_plain_decoding_has_tau_one() -> None:
    run = tally(*[Round(0, 0, 0, 1)] * 5, first_tokens=1)
    assert (run.tau, run.tokens_per_target_forward, run.output_tokens) == (1, 1, 6)
    assert run.acceptance_by_position() == []


def test_metrics_hold_exactly_the_agreed_keys() -> None:
    assert tally().metrics() == {
        "tau": 0.0,
        "tokens_per_target_forward": 0.0,
        "rounds": 0,
        "drafted_tokens": 0,
        "verified_tokens": 0,
        "accepted_tokens": 0,
        "acceptance_by_position": [],
        "conditional_acceptance_by_position": [],
        "output_tokens": 0,
    }
