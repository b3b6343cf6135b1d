"""The report on the machine at hand."""

from itertools import count

import torch

from dspark.doctor.artefacts import cache_entries, versions
from dspark.doctor.report import examine
from dspark.doctor.timing import time_kernels
from dspark.nn.linear import PlainKernel


def test_the_report_knows_this_machine():
    report = examine(clock=map(float, count()).__next__)
    assert report.versions["torch"] == torch.__version__
    assert report.processor.cores >= 1
    assert report.memory.total is None or report.memory.total > 2**28
    assert {timing.dtype for timing in report.kernels} >= {"float32", "bfloat16"}


def test_timing_counts_one_product_and_reads_the_passed_clock():
    (timing,) = time_kernels([PlainKernel()], [4], clock=map(float, count()).__next__, budget=0.0)
    assert timing.seconds == 1
    assert timing.gigaflops == 2e-9 * 4 * 576 * 1536


def test_cache_sizes_are_summed_by_entry(tmp_path):
    (tmp_path / "model" / "deep").mkdir(parents=True)
    (tmp_path / "model" / "a.bin").write_bytes(bytes(10))
    (tmp_path / "model" / "deep" / "b.bin").write_bytes(bytes(5))
    assert [(entry.name, entry.bytes) for entry in cache_entries(tmp_path)] == [("model", 15)]
    assert cache_entries(tmp_path / "absent") == ()


def test_optional_packages_that_are_absent_are_none(monkeypatch):
    monkeypatch.setattr("dspark.doctor.artefacts.PACKAGES", ("no-such-package-here",))
    assert versions()["no-such-package-here"] is None
