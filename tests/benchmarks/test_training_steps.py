"""The yardstick computes what the trainer computes: the same states, gradients and acceptance, padded or packed."""

from dataclasses import replace

import pytest
import torch

from benchmarks import eager_step
from benchmarks.packing import Row, packed_states, padded_states
from benchmarks.packing import table as packing_table
from benchmarks.step_problem import Sizes, anchors_of, documents, drafter
from benchmarks.training_throughput import ARMS, MIB, Measured, Repeat, counts, eager_steps, row, table

SIZES = Sizes(
    answers=3, anchors=4, gamma=3, vocabulary=40, width=16, taps=(0, 3), layers=2, prompt=(3, 9), response=(4, 20),
    heads=(2, 1, 8), inner=24, rank=4,
)  # fmt: skip


@pytest.mark.parametrize("context", [0, 64])
def test_padded_rows_and_packed_documents_have_the_same_states_and_gradients(context):
    found = documents(SIZES, 0)
    anchors = anchors_of(found, SIZES, 0)
    outputs, gradients = [], []
    for make in (packed_states, lambda *arguments: padded_states(*arguments, context)):
        module = drafter(SIZES)
        hidden = make(module, found, anchors, SIZES.gamma)()
        hidden.square().mean().backward()
        outputs.append(hidden.detach())
        gradients.append({name: p.grad for name, p in module.named_parameters() if p.grad is not None})
    torch.testing.assert_close(*outputs, atol=1e-5, rtol=1e-5)
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], atol=1e-5, rtol=1e-3)


def test_the_yardstick_teaches_every_slot_the_token_behind_it():
    found = documents(SIZES, 1)
    rows = eager_step.pad_rows(found, anchors_of(found, SIZES, 1), SIZES.gamma)
    for b, document in enumerate(found):
        tokens = document.answer.token_ids
        for a, anchor in enumerate(rows.anchors[b].tolist()):
            for k in range(SIZES.gamma):
                if rows.supervised[b, a, k]:
                    assert int(rows.previous[b, a, k]) == tokens[anchor + k]
                    assert int(rows.targets[b, a, k]) == tokens[anchor + k + 1]
    assert rows.supervised.any()


def test_all_arms_train_the_same_positions():
    counts = {name: [step() for step in arm.steps(SIZES, 2)] for name, arm in ARMS.items()}
    counts["eager"] = [step() for step in eager_steps(replace(SIZES), 2)]
    assert len({tuple(count) for count in counts.values()}) == 1
    assert all(count > 0 for count in counts["eager"])


def repeat(*rates: float, peak: int = 100) -> Repeat:
    """Processes that each made three steps of ten positions at their rate, using half of the time's processor."""
    return Repeat(tuple(Measured([10] * 3, [10 / r] * 3, [5 / r] * 3, before=60 * MIB, peak=peak * MIB) for r in rates))


RUNS = {
    ("eager", 1): [repeat(10), repeat(20)],
    ("packed", 1): [repeat(25), repeat(44, peak=90)],
    ("packed", 2): [repeat(20, 20), repeat(30, 36)],
}


def test_arms_are_compared_within_a_repeat():
    """The machine was twice as fast in the second repeat; the quotient does not see it, and tells its range."""
    found = row("packed", 1, RUNS)
    assert (found["positions_per_second"], found["range"]) == (34.5, [25, 44])
    assert found["times_eager"] == {"median": pytest.approx(2.35), "range": [2.2, 2.5]}
    assert (found["peak_mib"], found["step_mib"], found["positions_per_processor_second"]) == (100, 40, 69)


def test_rates_of_processes_are_added_and_scaling_is_told():
    found = row("packed", 2, RUNS)
    assert found["range"] == [40, 66]
    assert found["times_one_process"] == {"median": pytest.approx(1.55), "range": [1.5, 1.6]}
    assert found["times_eager"] is None
    lines = table([row(*key, RUNS) for key in RUNS]).splitlines()
    assert lines[2].startswith("| eager | 1 | 15 (10 to 20) |  |  | 30 |")
    assert lines[4].startswith("| packed | 2 | 53 (40 to 66) |  | 1.55 (1.50 to 1.60) | 53 |")
    assert len({line.count("|") for line in lines}) == 1
    assert counts("2,1") == (1, 2)


def test_padding_is_told_as_a_multiple_of_packing():
    rows = [Row(512, 3.0, 0.1, 40.0, 9, 1.0, 2.0), Row(0, 1.5, 0.1, 20.0, 9, 1.0, 2.0)]
    lines = packing_table(rows).splitlines()
    assert lines[2].startswith("| rows of 512 | 3.00 | 0.10 | 2.00 | 40 |")
    assert lines[3].startswith("| packed, whatever the context | 1.50 | 0.10 | 1.00 | 20 |")
    assert len({line.count("|") for line in lines}) == 1
