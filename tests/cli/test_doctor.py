"""`dspark doctor` on the machine at hand."""

import json

from dspark.cli.main import app
from dspark.cli.runner import exit_status


def test_json_is_the_report(capsys):
    assert exit_status(app, ["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["dspark"]
    assert report["embedded_target"]["name"] == "smollm2-135m"
    assert {"what", "why", "cure", "kind"} == set(report["findings"][0])


def test_the_table_explains_what_is_slow(capsys):
    assert exit_status(app, ["doctor"]) == 0
    out = capsys.readouterr().out
    assert "What is slow, and why" in out
    assert "GFLOP/s" in out
