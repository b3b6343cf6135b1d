"""A whole small world on disk for the verbs: a target with tokenizer and chat template, and a drafter for it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dspark.cache_root import cache_root
from dspark.cli.main import app
from dspark.cli.runner import exit_status
from dspark.drafters.config import DrafterConfig
from dspark.drafters.dspark import DSpark
from dspark.drafters.registry import extras_for, save_drafter
from dspark.nn.compiled.linear import CompiledKernel
from dspark.targets.registry import load_target

WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH = 16, 32, 4, 2, 1, 8
SPECIAL = ("<|im_start|>", "<|im_end|>", "<mask>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Outcome:
    """What a command left behind."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def json(self) -> dict:
        """Stdout as one JSON object, and nothing else there."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)

    def refused(self, *words: str) -> None:
        """Status 2 and one clear line on stderr with all `words`, nothing on stdout."""
        assert (self.status, self.out) == (2, ""), self
        assert self.err.startswith("error: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert [word for word in words if word not in self.err] == [], self.err

    def __repr__(self) -> str:
        return f"Outcome({self.status}, {self.out!r}, {self.err!r})"


@pytest.fixture
def run(capsys):
    def run_dspark(*arguments: object) -> Outcome:
        capsys.readouterr()
        status = exit_status(app, [str(argument) for argument in arguments])
        return Outcome(status, *capsys.readouterr())

    return run_dspark


@pytest.fixture(scope="session")
def cache_directory(tmp_path_factory) -> Path:
    """A cache that has this machine's kernels already, or else every process of its own would compile them."""
    directory: Path = tmp_path_factory.mktemp("cache")
    if CompiledKernel.available():
        (directory / "compiled").symlink_to(cache_root() / "compiled")
    return directory


@pytest.fixture(autouse=True)
def own_cache(cache_directory, monkeypatch):
    """Keep what the small models leave behind out of the user's cache."""
    monkeypatch.setenv("DSPARK_CACHE", str(cache_directory))


@pytest.fixture(scope="session")
def world(tmp_path_factory, cache_directory) -> Path:
    """A folder with `target/` and `drafter/`."""
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DSPARK_CACHE", str(cache_directory))
        write_target(folder / "target", seed=0)
        write_drafter(folder / "drafter", folder / "target")
    return folder


def write_target(directory: Path, seed: int, positions: int = 128, extra_tokens: int = 0) -> None:
    """A Llama of 4 layers and random weights."""
    directory.mkdir()
    tokenizer = byte_tokenizer(extra_tokens)
    tokenizer.save(str(directory / "tokenizer.json"))
    vocab_size = tokenizer.get_vocab_size()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "max_position_embeddings": positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "eos_token_id": tokenizer.token_to_id("<|im_end|>"),
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    save_file(random_weights(vocab_size, seed), directory / "model.safetensors")


def byte_tokenizer(extra_tokens: int = 0) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(f"<extra{i}>") for i in range(extra_tokens)])
    return tokenizer


def random_weights(vocab_size: int, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) / columns**0.5

    weights = {"model.embed_tokens.weight": matrix(vocab_size, WIDTH) * 4, "model.norm.weight": torch.ones(WIDTH)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        weights |= {prefix + "input_layernorm.weight": torch.ones(WIDTH)}
        weights |= {prefix + "post_attention_layernorm.weight": torch.ones(WIDTH)}
        weights |= {prefix + f"self_attn.{n}_proj.weight": matrix(HEADS * HEAD_WIDTH, WIDTH) for n in "qo"}
        weights |= {prefix + f"self_attn.{n}_proj.weight": matrix(KV_HEADS * HEAD_WIDTH, WIDTH) for n in "kv"}
        weights |= {prefix + f"mlp.{n}_proj.weight": matrix(HIDDEN, WIDTH) for n in ("gate", "up")}
        weights |= {prefix + "mlp.down_proj.weight": matrix(WIDTH, HIDDEN)}
    return weights


def write_drafter(directory: Path, target_directory: Path) -> None:
    """A DSpark of one layer with a Markov and a confidence head, random weights."""
    target = load_target(target_directory)
    config = DrafterConfig(
        hidden_size=WIDTH,
        intermediate_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_WIDTH,
        vocab_size=target.info.vocab_size,
        num_target_layers=LAYERS,
        target_layer_ids=(0, 2),
        mask_token_id=byte_tokenizer().token_to_id("<mask>"),
        block_size=3,
        markov_rank=4,
        enable_confidence_head=True,
        max_position_embeddings=128,
    )
    drafter = DSpark(config, target.embedding_weight, target.lm_head_weight)
    drafter.initialize(torch.Generator().manual_seed(1))
    save_drafter(drafter, directory, extras_for(target.info))
