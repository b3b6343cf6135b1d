"""Estimates, against a store that was really written, matrices that were really multiplied, and sums by hand."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dspark.data.teacher_record import FeaturePrecision
from dspark.nn.linear import PlainKernel
from dspark.targets.config import DecoderConfig
from dspark.training.estimate import DataSize, estimate, forward_flops, store_bytes
from dspark.training.teacher import Teacher, teacher_store
from tests.training.tiny import WIDTH, TinyTarget, tiny_answers, tiny_recipe

SHAPE = {
    "model_type": "llama", "vocab_size": 50, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    "hidden_act": "silu", "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize("precision", list(FeaturePrecision))
def test_bytes_are_those_of_a_store(tmp_path, precision):
    answers, target, taps = tiny_answers(6), TinyTarget(), (0, 3)
    store = teacher_store(tmp_path, target.info, taps, 5, precision)
    Teacher(target, taps, 5, store, precision).records(answers)
    store.pack()
    (shard,) = tmp_path.iterdir()
    header = 8 + int.from_bytes(shard.read_bytes()[:8], "little")
    expected = store_bytes(DataSize.of(answers), len(taps) * WIDTH, 5, precision)
    assert shard.stat().st_size - header == expected


def test_operations_are_those_of_the_matrices():
    """torch counts the products of a forward pass; causal attention is counted whole there, half here."""
    config = DecoderConfig.parse(SHAPE)
    length = 10
    data = DataSize(1, length, 4, length**2)
    attention = 2.0 * config.num_layers * config.num_heads * config.head_dim * length**2
    counted = FlopCounterMode(display=False)
    target = native(config)
    with counted:
        states = target.states(torch.arange(length)[None], torch.tensor([length]), ())
        target.logits(states.last_hidden[0, :4])
    assert counted.get_total_flops() in (
        pytest.approx(forward_flops(config, data) + attention),
        pytest.approx(forward_flops(config, data) - attention),  # where torch counts no attention at all
    )


def native(config):
    from dspark.targets.native import NativeTarget
    from dspark.targets.weights import expected_shapes
    from dspark.types import TargetInfo

    weights = {name: torch.ones(shape) for name, shape in expected_shapes(config).items()}
    info = TargetInfo("t", config.vocab_size, config.hidden_size, config.num_layers, 64, (2,))
    return NativeTarget(config, info, weights, PlainKernel())


def test_hours_and_prices_by_hand():
    """8 answers, 2 a step, 12 steps: three epochs. Online runs over all of them, a store over the first."""
    answers = tiny_answers(8)
    positions = sum(len(answer.token_ids) for answer in answers)
    found = estimate(tiny_recipe(total_steps=12, cooldown_steps=0), answers, WIDTH, 36.0, "given", 2.0)
    online, bf16, fp8 = found.choices
    assert found.epochs == 3.0
    assert (online.bytes, online.target_positions) == (0, 3 * positions)
    assert online.target_hours == pytest.approx(0.03 * positions)
    assert online.price == pytest.approx(0.06 * positions)
    assert (bf16.target_positions, bf16.target_hours) == (positions, pytest.approx(0.01 * positions))
    assert bf16.bytes == store_bytes(DataSize.of(answers), 2 * WIDTH, 31, FeaturePrecision.BF16)
    assert 0 < fp8.bytes < bf16.bytes


def test_a_run_of_less_than_an_epoch_stores_what_it_sees():
    answers = tiny_answers(8)
    online, bf16, _ = estimate(tiny_recipe(total_steps=2, cooldown_steps=0), answers, WIDTH, 1.0, "given").choices
    assert online.target_positions == bf16.target_positions
    assert bf16.bytes == round(store_bytes(DataSize.of(answers), 2 * WIDTH, 31, FeaturePrecision.BF16) / 2)
    assert bf16.price is None
