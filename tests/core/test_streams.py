"""The three random streams: reproducible, keyed by everything they should be, independent of each other."""

import itertools

import numpy as np
import pytest
from scipy import stats

from dspark.core.streams import RandomStreams, Stream, UniformReader
from dspark.errors import ConfigError

LEVEL = 1e-6


def sample(seeds: range, stream: Stream, start: int, index: int = 0) -> np.ndarray:
    return np.array([RandomStreams(seed).uniforms(stream, start, index + 1)[index] for seed in seeds])


def test_values_are_pinned() -> None:
    # Texts of old seeds change when these do.
    assert RandomStreams(1).uniforms(Stream.DRAFT, 5, 3) == (
        0.24332057453742428,
        0.8321975864877551,
        0.3308773849322949,
    )


def test_a_longer_call_begins_with_a_shorter_one() -> None:
    streams = RandomStreams(2**64 - 1)
    assert streams.uniforms(Stream.ACCEPT, 9, 8)[:3] == streams.uniforms(Stream.ACCEPT, 9, 3)
    assert streams.uniforms(Stream.ACCEPT, 9, 0) == ()


def test_one_reader_gives_every_request_its_own_values() -> None:
    reader = UniformReader()
    for seed, stream, start, count in (
        (1, Stream.DRAFT, 5, 3),
        (2**64 - 1, Stream.RECOVER, 0, 9),
        (1, Stream.DRAFT, 5, 1),
    ):
        key = np.array((seed, stream), dtype=np.uint64)
        fresh = np.random.Philox(key=key, counter=np.array((0, start, 0, 0), dtype=np.uint64))
        assert reader.read(seed, stream, start, count) == np.random.Generator(fresh).random(count).tolist()


def test_every_part_of_the_key_matters() -> None:
    keys = itertools.product((0, 1, 2**63), Stream, range(4))
    draws = [u for seed, stream, start in keys for u in RandomStreams(seed).uniforms(stream, start, 6)]
    assert len(set(draws)) == len(draws) == 3 * 3 * 4 * 6


@pytest.mark.parametrize("stream", Stream)
def test_uniform_at_a_fixed_place_over_seeds(stream: Stream) -> None:
    draws = sample(range(4000), stream, 7, 2)
    assert (draws >= 0).all()
    assert (draws < 1).all()
    assert stats.kstest(draws, "uniform").pvalue > LEVEL


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((Stream.DRAFT, 7, 0), (Stream.ACCEPT, 7, 0)),
        ((Stream.ACCEPT, 7, 0), (Stream.RECOVER, 7, 0)),
        ((Stream.DRAFT, 7, 0), (Stream.DRAFT, 7, 1)),
        ((Stream.DRAFT, 7, 1), (Stream.DRAFT, 8, 0)),
    ],
    ids=["draft-accept", "accept-recover", "positions", "same position, next round"],
)
def test_pairs_are_independent_over_seeds(a: tuple[Stream, int, int], b: tuple[Stream, int, int]) -> None:
    counts, _, _ = np.histogram2d(sample(range(4000), *a), sample(range(4000), *b), bins=8, range=[[0, 1], [0, 1]])
    assert stats.chisquare(counts.ravel()).pvalue > LEVEL


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seed_out_of_range(seed: int) -> None:
    with pytest.raises(ConfigError, match=f"seed is {seed}; expected an integer from 0"):
        RandomStreams(seed)
