"""The lottery: the share it promises, and nothing but seed, request and position in a choice."""

import pytest

from dspark.calibration.exploration import RoundLottery
from dspark.core.streams import RandomStreams, Stream
from dspark.errors import ConfigError


def test_the_share_is_kept():
    drawn = sum(RoundLottery(0.1, seed=3).draws(request, p) for request in range(100) for p in range(100))
    assert abs(drawn - 1000) < 5 * (10_000 * 0.1 * 0.9) ** 0.5  # 5 standard deviations


def test_choices_can_be_repeated_in_any_order_and_differ_by_key():
    lottery = RoundLottery(0.5)
    keys = [(request, position) for request in range(20) for position in range(20)]
    forth = {key: lottery.draws(*key) for key in keys}
    assert {key: lottery.draws(*key) for key in reversed(keys)} == forth
    assert {key: RoundLottery(0.5, seed=1).draws(*key) for key in keys} != forth


def test_the_ends_are_never_and_always():
    assert not any(RoundLottery(0.0).draws(0, p) for p in range(50))
    assert all(RoundLottery(1.0).draws(2**64 - 1, p) for p in range(50))


@pytest.mark.parametrize(("share", "seed"), [(-0.1, 0), (1.1, 0), (float("nan"), 0), (0.5, -1), (0.5, 2**64)])
def test_bad_settings_are_refused(share, seed):
    with pytest.raises(ConfigError, match="share|seed"):
        RoundLottery(share, seed)


@pytest.mark.parametrize("stream", Stream)
def test_choices_share_no_numbers_with_the_draws_of_a_request(stream):
    """Catches a lottery that reads a stream of sampling: request n of seed s would be stream n of a request's seed s.

    Which rounds are explored would then depend on the numbers that draw, accept or recover their tokens.
    """
    lottery, draws = RoundLottery(0.5, seed=9), RandomStreams(9)
    agree = sum(lottery.draws(int(stream), p) == (draws.uniforms(stream, p, 1)[0] < 0.5) for p in range(1000))
    assert abs(agree - 500) < 5 * 250**0.5  # 5 standard deviations; the same numbers would always agree
