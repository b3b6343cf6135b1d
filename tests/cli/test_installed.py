"""The command as users start it: a process of its own, the embedded model, a pipe that closes."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_cache():
    """The user's cache, for once: converting the embedded model again would take longer than the tests."""


def test_generate_answers_a_question(model_wheel):
    arguments = ["generate", "What is the capital of France?", "--max-tokens", "24", "--json"]
    command = [sys.executable, "-m", "dspark", *arguments]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (finished.returncode, finished.stderr) == (0, "")
    answer = json.loads(finished.stdout)
    assert answer["text"] == "The capital of France is Paris."
    assert answer["finish_reason"] == "stop"


def test_a_reader_that_leaves_early_sees_no_traceback(world):
    command = f"{sys.executable} -m dspark generate Hi -t {world / 'target'} -d none -n 60 --ignore-eos | head -c 1"
    finished = subprocess.run(["sh", "-c", command], capture_output=True, check=False, timeout=300)
    assert len(finished.stdout) == 1
    assert b"Traceback" not in finished.stderr
