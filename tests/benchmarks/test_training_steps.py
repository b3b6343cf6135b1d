"""The yardstick computes what the trainer computes: the same states, gradients and acceptance, padded or packed."""

from dataclasses import replace

import pytest
import torch

from benchmarks import eager_step
from benchmarks.packing import packed_states, padded_states
from benchmarks.step_problem import Sizes, anchors_of, documents, drafter
from benchmarks.training_throughput import ARMS, eager_steps

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
