"""A target that transformers runs teaches a drafter what the native decoder of the same weights teaches it."""

import dataclasses
import gzip
import json
from pathlib import Path

import pytest
import torch

from dspark.core.tau import RoundTally
from dspark.drafters.gemma4 import Gemma4DSpark
from dspark.drafters.registry import load_drafter
from dspark.engine.reference import ReferenceLoop
from dspark.errors import CompatibilityError
from dspark.targets.checkpoint import build_target, read_directory
from dspark.targets.transformers_adapter import TransformersTarget, load_transformers
from dspark.training.on_policy import build_probe
from dspark.training.progress import Progress
from dspark.training.recipe import Recipe
from dspark.training.run import TrainReport, train
from dspark.training.trainable_target import TrainableTarget
from dspark.types import AFTER_NORM, SamplingParams
from tests.training.tiny import tiny_answers, tiny_recipe

transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")

SIZES = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 6, "num_attention_heads": 2, "eos_token_id": 2}
LLAMA = {"intermediate_size": 24, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 256}


def model_of(family: str, **settings: object) -> object:
    torch.manual_seed(5)
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**settings))
    return randomised(model)


def gpt2(**settings: int) -> object:
    torch.manual_seed(5)
    return randomised(transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings)))


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.3)
    return model.eval()


def run(
    tmp_path: Path, target: TrainableTarget, recipe: Recipe, watch=lambda p: None, **drafter: object
) -> TrainReport:
    answers = tmp_path / "answers.jsonl.gz"
    with gzip.open(answers, "wt") as file:
        file.writelines(json.dumps(dataclasses.asdict(answer)) + "\n" for answer in tiny_answers())
    update = {
        "data": recipe.data.model_copy(update={"answers": answers}),
        "drafter": recipe.drafter.model_copy(update=drafter),
    }
    return train(recipe.model_copy(update=update), target, tmp_path / type(target).__name__, watch=watch)


def test_it_teaches_as_the_native_decoder_does(tmp_path: Path) -> None:
    directory = tmp_path / "tiny"
    model_of("Qwen3", **SIZES, **LLAMA).save_pretrained(directory)
    native = build_target(read_directory(directory, "tiny"), torch.float32)
    adapted = load_transformers(directory, "tiny", torch.float32)
    found, expected = (run(tmp_path, target, tiny_recipe()) for target in (adapted, native))
    assert found.held_out.loss == pytest.approx(expected.held_out.loss, rel=1e-3)
    assert found.on_policy == expected.on_policy
    assert load_drafter(found.drafter_directory, native).config.intermediate_size == 24


def test_a_family_unlike_llama_trains_from_random_weights(tmp_path: Path) -> None:
    sizes = {"vocab_size": 31, "n_embd": 16, "n_layer": 6, "n_head": 2, "n_positions": 256}
    target = TransformersTarget(gpt2(**sizes), "tiny")
    with pytest.raises(CompatibilityError, match=r"input_layernorm.weight missing.*drafter.warm_start to false"):
        run(tmp_path, target, tiny_recipe())
    report = run(tmp_path, target, tiny_recipe(), warm_start=False)
    assert report.finished
    assert report.on_policy.texts == 2


def test_padding_and_batches_change_no_state() -> None:
    target = TransformersTarget(model_of("Gemma2", **SIZES, **LLAMA, **WINDOW), "tiny")
    tokens = torch.tensor([[4, 9, 11, 7, 30], [8, 3, 5, 0, 0]])
    batch = target.states(tokens, torch.tensor([5, 3]), (-1, 2))
    assert batch.features.shape == (2, 5, 32)
    alone = target.forward(tokens[1, :3], target.new_cache(3), (-1, 2))
    torch.testing.assert_close(batch.last_hidden[1, :3], alone.last_hidden)
    torch.testing.assert_close(batch.features[1, :3], alone.features)
    assert not batch.last_hidden[1, 3:].any()
    torch.testing.assert_close(target.states(tokens, None, (AFTER_NORM,)).features[0], batch.last_hidden[0])
    single = target.states(tokens[:1], None, ())
    assert single.features.shape == (1, 5, 0)
    torch.testing.assert_close(single.last_hidden[0], batch.last_hidden[0])


WINDOW = {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"] * 3, "query_pre_attn_scalar": 8}


def gemma4(**settings: object) -> TransformersTarget:
    sizes = {"global_head_dim": 8, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0, "pad_token_id": 0}
    layers = {"layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 6}
    shape = SIZES | LLAMA | sizes | layers | {"num_key_value_heads": 2, "final_logit_softcapping": 5.0, **settings}
    torch.manual_seed(5)
    model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**shape))
    return TransformersTarget(randomised(model), "tiny", "hash")


@pytest.mark.parametrize("shares", [True, False])
@pytest.mark.parametrize("chunk", [None, 7])
def test_gemma4_trains_a_drafter_of_its_own_kind(tmp_path: Path, shares: bool, chunk: int | None) -> None:
    target = gemma4(attention_k_eq_v=shares)
    recipe = tiny_recipe(total_steps=40)
    recipe = recipe.model_copy(update={"loss": recipe.loss.model_copy(update={"vocabulary_chunk": chunk})})
    seen: list[Progress] = []
    report = run(tmp_path, target, recipe, watch=seen.append, warm_start=False)
    losses = [progress.result.loss for progress in seen]
    assert sum(losses[-5:]) < sum(losses[:5])
    drafter = load_drafter(report.drafter_directory, target, kernel=None)
    assert isinstance(drafter, Gemma4DSpark)
    config = drafter.config
    assert (config.attention_k_eq_v, config.final_logit_softcapping, config.head_dim) == (shares, 5.0, 8)
    assert config.num_key_value_heads == (1 if shares else 2)
    assert config.rope_theta == 1_000_000.0
    probe = build_probe(target, tiny_answers()[:2], 8, 3, (0, 3), tmp_path / "texts")
    loop = [
        ReferenceLoop(target, drafter).generate(a.prompt_ids, SamplingParams(max_tokens=8)) for a in tiny_answers()[:2]
    ]
    assert probe(drafter).tau == pytest.approx(RoundTally.merged(r.tally for r in loop).tau)
