"""A history under changing gammas and owners is that of a plain dictionary which is emptied at every other gamma."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dspark.scheduling import Batch, CostTable, LaggedScheduler
from dspark.scheduling.history import MEAN_RATE, SurvivalHistory
from dspark.scheduling.persistence import PRIOR, RATE

TABLE = CostTable((1, 64), (0,), ((1.0, 9.0),), (1, 4), (0.1, 0.1))


class PlainHistory:
    """What `SurvivalHistory` says it is, one request at a time."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.rounds: list[tuple[int, list[int], np.ndarray]] = []
        self.learned = 0
        self.known: dict[int, np.ndarray] = {}
        self.mean: np.ndarray | None = None
        self.seen = 0
        self.last = 0
        self.passed = 0.0
        self.both = self.squares = PRIOR
        self.asked: dict[int, tuple[list[int], np.ndarray, np.ndarray]] = {}

    def expect(self, gamma: int) -> None:
        if self.mean is not None and len(self.mean) != gamma:
            self.known, self.mean = {}, None

    def recall(self, number: int, keys: list[int], gamma: int) -> np.ndarray:
        for when, owners, survival in [r for r in self.rounds if self.learned <= r[0] <= number - self.lag]:
            self.expect(len(survival))
            mean = survival.mean(axis=1)
            self.seen = 1 if self.mean is None else self.seen + 1
            share = max(self.share(len(owners), when), 1 / self.seen)
            self.mean = mean if self.mean is None else self.mean + share * (mean - self.mean)
            self.last = when
            self.learn(when, owners, survival)
            self.known |= dict(zip(owners, survival.T, strict=True))
        self.learned = max(self.learned, number - self.lag + 1)
        self.expect(gamma)
        self.known = {key: row for key, row in self.known.items() if key in keys}
        if self.mean is None:
            return np.ones((gamma, len(keys)))
        survival = np.array([self.known.get(key, self.mean) for key in keys]).T
        self.asked[number] = keys, survival, self.mean
        slope = min(max(self.both / self.squares, 0), 1)
        return self.mean[:, None] + slope * (survival - self.mean[:, None])

    def share(self, requests: int, when: int) -> float:
        self.passed = 1 if self.seen == 1 else self.passed + when - self.last
        rate = MEAN_RATE * min(requests / 5, 1)
        full, most = 1 - (1 - rate) ** self.passed, requests / 8
        self.passed = 0 if full <= most else self.passed - np.log(1 - most) / np.log(1 - rate)
        return min(full, most)

    def learn(self, number: int, owners: list[int], survival: np.ndarray) -> None:
        """Deviations that were known when the round was planned, against those that it showed."""
        keys, before, mean = self.asked.get(number, ([], survival, survival[:, 0]))
        both = [key for key in owners if key in keys]
        if both and len(before) == len(survival):
            x = before[:, [keys.index(key) for key in both]] - mean[:, None]
            y = survival[:, [owners.index(key) for key in both]] - mean[:, None]
            self.both += RATE * (PRIOR - self.both) + (x * y).sum()
            self.squares += RATE * (PRIOR - self.squares) + (x * x).sum()


rounds = st.tuples(st.sampled_from([1, 2, 2, 3]), st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))


@given(st.lists(rounds, min_size=1, max_size=10), st.integers(1, 3))
def test_equals_a_plain_dictionary(played: list[tuple[int, list[int]]], lag: int) -> None:
    random = np.random.default_rng(0)
    ours, plain = SurvivalHistory(lag), PlainHistory(lag)
    for number, (gamma, keys) in enumerate(played):
        found, expected = ours.recall(number, np.array(keys), gamma), plain.recall(number, keys, gamma)
        assert found == pytest.approx(expected)
        owners = random.permutation(keys)[: random.integers(1, len(keys) + 1)].tolist()  # some, in another order
        survival = np.cumprod(random.random((gamma, len(owners))), axis=0)
        ours.record(number, np.array(owners), survival)
        plain.rounds.append((number, owners, survival))


@pytest.mark.parametrize("gammas", [(7, 5, 7, 7, 7), (5, 7, 5, 5, 5), (7, 7, 5, 7, 5, 7, 7)])
def test_gamma_may_change_and_change_back(gammas: Sequence[int]) -> None:
    scheduler = LaggedScheduler(TABLE, lag=2)
    for number, gamma in enumerate(gammas):
        batch = Batch(np.array([1, 2 if number < 3 else 3]), gamma)
        lengths = scheduler.lengths(scheduler.plan(batch), np.full((2, gamma), 0.5))
        assert lengths.max() <= gamma
