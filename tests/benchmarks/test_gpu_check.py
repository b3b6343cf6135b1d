"""The check that waits for a GPU, on random models and the CPU: it runs, it goes on where it ended, it can fail."""

import json

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu_subjects import open_subject
from dspark.nn.device import CPU

TINY = ("--device", "cpu", "--tiny", "--samples", "400", "--tokens", "6", "--concurrencies", "1", "8")


def check(monkeypatch, path, *more):
    monkeypatch.setattr("sys.argv", ["gpu_check.py", *TINY, "--json", str(path), *more])
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    return ended.value.code, json.loads(path.read_text())


def test_the_whole_check_runs_and_an_interrupted_one_goes_on(monkeypatch, tmp_path):
    path = tmp_path / "check.json"
    check(monkeypatch, path, "--minutes", "0.0001")
    first = json.loads(path.read_text())["parts"]
    assert set(first) == {"parity fp32"}
    code, results = check(monkeypatch, path)
    parts = results["parts"]
    assert code == 0
    assert list(parts) == ["parity fp32", "parity bf16", "losslessness", "cost", "arms at 1", "arms at 8"]
    assert parts["parity fp32"] == first["parity fp32"]
    assert 0 < max(parts["parity fp32"]["relative errors"].values()) < 1e-4  # two ways to attend
    assert results["environment"]["device"] == "cpu"
    assert parts["parity fp32"]["same likeliest token"] == {"logits": 1.0, "draft logits": 1.0}
    assert parts["losslessness"]["accepted_drafts"] > 0
    arms = [parts[f"arms at {requests}"]["arms"] for requests in (1, 8)]
    assert all(set(arm) == {"plain", "fixed", "lagged"} for arm in arms)
    assert sum(arm["plain"]["accepted_drafts"] for arm in arms) == 0
    assert sum(arm["fixed"]["accepted_drafts"] for arm in arms) > 0


def test_results_of_another_machine_are_not_continued(tmp_path):
    path = tmp_path / "check.json"
    gpu_check.save(path, {"environment": {"device": "H200"}, "parts": {"cost": {}}})
    assert gpu_check.earlier(path, {"device": "H200"})["parts"] == {"cost": {}}
    assert gpu_check.earlier(path, {"device": "B200"})["parts"] == {}


def test_a_wrong_weight_fails_parity_and_a_wrong_draw_fails_losslessness(monkeypatch):
    subject = open_subject("", None, "fp32", CPU, tiny=True)
    subject.target._layers[1]._mlp_norm._doubled.mul_(1.05)
    assert not gpu_check.parity(subject, *gpu_check.TOLERANCES["fp32"])["ok"]
    monkeypatch.setattr("dspark.engine.request_round.survives", lambda *ignored: True)
    assert not gpu_check.losslessness(subject, 400)["ok"]


def test_graphs_are_compared_with_the_same_pieces_run_eagerly(monkeypatch):
    def reruns(work):
        outputs = work()
        return outputs, lambda: [own.copy_(new) for own, new in zip(outputs, work(), strict=True)]

    made = gpu_check.StepGraphs
    monkeypatch.setattr(gpu_check, "StepGraphs", lambda: made(reruns))
    with torch.inference_mode():
        outcome = gpu_check.graphs(open_subject("", None, "fp32", CPU, tiny=True), rows=(2, 8), repeats=1)
    assert outcome["ok"]
    assert set(outcome["pieces"]) == {"verify 2", "draft 2", "verify 8", "draft 8"}
