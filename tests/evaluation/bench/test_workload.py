"""Requests of a run: the same for every arm, of all sets, out of step where users begin together."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from dspark.errors import ConfigError
from dspark.evaluation.bench.arrivals import Poisson
from dspark.evaluation.bench.load import Closed, Open
from dspark.evaluation.bench.workload import Workload, mixed
from dspark.types import SamplingParams

PROMPTS = [[i] * (i + 1) for i in range(5)]
WORK = Workload(Closed(4), PROMPTS, SamplingParams(max_tokens=40, ignore_eos=True), requests=8, warmup=4)


def test_questions_depend_on_the_seed_alone() -> None:
    one, two, other = (list(islice(WORK.questions(seed), 12)) for seed in (1, 1, 2))
    assert one == two
    assert one != other
    assert [question.params.seed for question in one] == list(range(1, 13))


def test_every_prompt_once_before_any_twice_and_never_as_a_cached_one() -> None:
    asked = list(islice(WORK.questions(0), 15))
    assert Counter(len(q.prompt_ids) for q in asked[:5]) == Counter(range(1, 6))
    assert len({(q.prompt_ids, q.salt) for q in asked}) == 15


def test_first_answers_of_users_are_cut_where_others_would_stand() -> None:
    limits = [q.params.max_tokens for seed in range(200) for q in islice(WORK.questions(seed), 6)]
    firsts = [limit for i, limit in enumerate(limits) if i % 6 < 4]
    assert {limit for i, limit in enumerate(limits) if i % 6 >= 4} == {40}
    assert set(firsts) == set(range(1, 41))
    assert abs(sum(firsts) / len(firsts) - 20.5) < 4 * 11.5 / len(firsts) ** 0.5  # uniform on 1 ... 40
    open_loop = replace(WORK, load=Open(Poisson(1.0)))
    assert {q.params.max_tokens for q in islice(open_loop.questions(0), 12)} == {40}


def test_sets_take_turns_and_long_prompts_stay_out() -> None:
    sets = [[[1], [1, 1], [1, 1, 1]], [[2]], [[3], [3, 3]]]
    assert mixed(sets) == [[1], [2], [3], [1, 1], [3, 3], [1, 1, 1]]
    assert mixed(sets, longest=2) == [[1], [2], [3], [1, 1], [3, 3]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompts": []}, "no prompts"),
        ({"requests": 0}, "0 requests"),
        ({"warmup": -1}, "after -1"),
        ({"steady": False}, "warm-up of 4"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        replace(WORK, **change)  # type: ignore[arg-type]


def test_a_load_without_users_is_refused() -> None:
    with pytest.raises(ConfigError, match="concurrency is 0"):
        Closed(0)
