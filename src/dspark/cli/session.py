"""What generate, chat and eval decode with: a target, its text codec and a drafter, opened by name."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.cli import console
from dspark.errors import FormatError

if TYPE_CHECKING:
    from dspark.cli.options import Dtype
    from dspark.data.text import TextCodec
    from dspark.drafters.dspark import DSpark
    from dspark.engine.options import DecodeOptions
    from dspark.engine.reference import Generation, ReferenceLoop
    from dspark.targets.native import NativeTarget
    from dspark.types import SamplingParams

NO_DRAFTER = "none"


@dataclass(frozen=True, slots=True)
class Session:
    """A loop ready to decode, and the codec of its target."""

    codec: "TextCodec"
    loop: "ReferenceLoop"

    def start(self, prompt_ids: list[int], params: "SamplingParams") -> "Generation":
        """Begin one answer; its text streams."""
        return self.loop.start(prompt_ids, params, self.codec.detokeniser())


def decode_options(max_draft_tokens: int | None = None, block_verification: bool = False) -> "DecodeOptions":
    """The loop's options from a verb's flags."""
    from dspark.core.block_verification import BlockVerification
    from dspark.core.rejection import TokenRejection
    from dspark.engine.options import DecodeOptions

    return DecodeOptions(max_draft_tokens, BlockVerification() if block_verification else TokenRejection())


def open_session(
    target_name: str, drafter_name: str | None, dtype: "Dtype", options: "DecodeOptions", quiet: bool
) -> Session:
    """Load target and drafter, with a spinner on the terminal."""
    with console.status(f"Loading {target_name} ...", quiet=quiet):
        from dspark.engine.reference import ReferenceLoop

        target, codec = open_target(target_name, dtype)
        return Session(codec, ReferenceLoop(target, open_drafter(drafter_name, target), options))


def open_target(name: str, dtype: "Dtype") -> "tuple[NativeTarget, TextCodec]":
    """The target called `name` and its codec."""
    import torch

    from dspark.data.chat import ChatTemplate
    from dspark.data.text import TextCodec, read_tokenizer
    from dspark.targets.embedded import NAME, converted_directory, load_smollm2

    if name != NAME:
        raise FormatError(f"no target is called {name!r}; expected {NAME}")
    directory = converted_directory()
    template = ChatTemplate((directory / "chat_template.jinja").read_text(encoding="utf-8"))
    target = load_smollm2(torch.bfloat16 if dtype == "bfloat16" else torch.float32)
    return target, TextCodec(read_tokenizer(directory / "tokenizer.json"), template)


def open_drafter(name: str | None, target: "NativeTarget") -> "DSpark | None":
    """The drafter in directory `name`; the shipped one for None; nothing for `none` or where none is shipped."""
    from dspark.drafters.registry import load_drafter
    from dspark.drafters.shipped import shipped_drafter

    if name == NO_DRAFTER:
        return None
    directory = shipped_drafter(target.info.name) if name is None else Path(name)
    return None if directory is None else load_drafter(directory, target)
