"""Replayed records are those that the loop records: all of them at temperature 0, in law above it."""

from pathlib import Path

import numpy as np
import pytest

from dspark.calibration.records import DraftMode, RoundRecords, concatenate
from dspark.engine.reference import ReferenceLoop
from dspark.engine.round_recorder import RequestLabel, RoundRecorder
from dspark.evaluation.replay import Replay
from dspark.evaluation.replay_records import replay_records
from dspark.evaluation.target_text import Question, TextWriter
from dspark.evaluation.text_store import TextStore
from dspark.types import SamplingParams
from tests.evaluation.tiny import TAPS, drafter, native

GAMMA, PROMPT = 3, (0, 1, 2)
LABEL = RequestLabel(7, "math", DraftMode.GREEDY, 0.0)


def recorded(target, model, params: SamplingParams) -> RoundRecords:
    recorder = RoundRecorder(LABEL, GAMMA)
    ReferenceLoop(target, model).generate(PROMPT, params, observer=recorder)
    return recorder.records()


@pytest.mark.parametrize(("seed", "eos"), [(8, ()), (8, (1,)), (4, (3,)), (2, (0,))])
def test_greedy_rounds_are_the_loops(tmp_path: Path, seed: int, eos: tuple[int, ...]) -> None:
    target = native(4, eos, seed)
    model = drafter(target, GAMMA)
    params = SamplingParams(max_tokens=16)
    replay = Replay(TextStore(tmp_path, TextWriter(target, TAPS, GAMMA)), model)
    found = replay_records(replay, Question(PROMPT, params), LABEL)
    expected = recorded(target, model, params)
    for name in ("accepted", "judged", "position", "history", "request", "domain"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name
    assert (found.labels == expected.labels)[expected.valid].all()
    # Up to the first rejected draft, text and drafts are the same tokens, and so are the signals.
    same = np.arange(GAMMA) <= expected.accepted[:, None]
    np.testing.assert_allclose(found.peak[same], expected.peak[same], atol=1e-4)
    np.testing.assert_allclose(found.confidence[same], expected.confidence[same], atol=1e-4)


def test_chances_average_to_the_loops_coins(tmp_path: Path) -> None:
    target = native(4, seed=1)
    model = drafter(target, GAMMA)
    replay = Replay(TextStore(tmp_path, TextWriter(target, TAPS, GAMMA)), model, simulations=4)
    all_params = [SamplingParams(temperature=1.0, max_tokens=8, seed=seed) for seed in range(30)]
    chances = concatenate([replay_records(replay, Question(PROMPT, params), LABEL) for params in all_params]).labels
    coins = concatenate([recorded(target, model, params) for params in all_params]).labels
    errors = np.sqrt(coins.var(axis=0) / len(coins) + chances.var(axis=0) / (len(chances) / 4))
    assert (abs(chances.mean(axis=0) - coins.mean(axis=0)) < 4 * errors + 1e-9).all()  # 4 standard errors, seeds fixed
