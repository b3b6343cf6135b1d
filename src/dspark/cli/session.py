"""What generate, chat and eval decode with: a target, its text codec and a drafter, opened by name."""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dspark.cli import console
from dspark.errors import CompatibilityError

if TYPE_CHECKING:
    from dspark.cli.options import Dtype
    from dspark.data.text import TextCodec
    from dspark.drafters.dspark import DSpark
    from dspark.engine.options import DecodeOptions
    from dspark.engine.reference import Generation, ReferenceLoop
    from dspark.targets.native import NativeTarget
    from dspark.types import SamplingParams, Target

NO_DRAFTER = "none"
MEASURE_REPEATS = 2


@dataclass(frozen=True, slots=True)
class Session:
    """A loop ready to decode, the codec of its target, and where its drafter came from."""

    codec: "TextCodec"
    loop: "ReferenceLoop"
    drafter_directory: Path | None

    def start(self, prompt_ids: list[int], params: "SamplingParams") -> "Generation":
        """Begin one answer; its text streams."""
        return self.loop.start(prompt_ids, params, self.codec.detokeniser())

    def drafter_hash(self) -> str | None:
        """sha256 of the drafter's weight files, None without a drafter."""
        if self.drafter_directory is None:
            return None
        digest = sha256()
        for path in sorted(self.drafter_directory.glob("*.safetensors")):
            digest.update(path.read_bytes())
        return digest.hexdigest()


def decode_options(max_draft_tokens: int | None = None, block_verification: bool = False) -> "DecodeOptions":
    """The loop's options from a verb's flags."""
    from dspark.core.block_verification import BlockVerification
    from dspark.core.rejection import TokenRejection
    from dspark.engine.options import DecodeOptions

    return DecodeOptions(max_draft_tokens, BlockVerification() if block_verification else TokenRejection())


def open_session(
    target_name: str,
    drafter_name: str | None,
    dtype: "Dtype",
    options: "DecodeOptions",
    quiet: bool,
    measure: bool = False,
) -> Session:
    """Load target and drafter, with a spinner on the terminal.

    With `measure`, and no cap in `options`, a round holds as many drafts as pay on this machine.
    """
    with console.status(f"Loading {target_name} ...", quiet=quiet):
        from dspark.data.text import TextCodec
        from dspark.engine.draft_limit import measure_draft_limit
        from dspark.engine.reference import ReferenceLoop
        from dspark.targets.registry import load_tokenizer

        target, codec = open_target(target_name, dtype), TextCodec(load_tokenizer(target_name))
        directory = drafter_directory(drafter_name, target.info.name)
        drafter = None if directory is None else open_drafter(directory, target)
        if measure and drafter is not None and options.max_draft_tokens is None:
            options = replace(options, max_draft_tokens=measure_draft_limit(target, drafter, repeats=MEASURE_REPEATS))
    if drafter is not None and options.max_draft_tokens == 0:
        console.note("drafting does not pay on this machine; decoding plainly (--max-draft-tokens forces it)", quiet)
    return Session(codec, ReferenceLoop(target, drafter, options), directory)


def open_target(name: str, dtype: "Dtype") -> "Target":
    """The target called `name`; `auto` keeps bfloat16 weights and lets the kernel be chosen for the processor."""
    from dspark.targets.registry import load_target

    return load_target(name, "bf16" if dtype == "auto" else dtype)


def open_native_target(name: str, dtype: "Dtype") -> "NativeTarget":
    """The target called `name`, its weights within reach. Raises CompatibilityError if transformers runs it."""
    from dspark.targets.native import NativeTarget

    target = open_target(name, dtype)
    if not isinstance(target, NativeTarget):
        raise CompatibilityError(f"{name} runs through transformers; this needs a target of the native decoder.")
    return target


def drafter_directory(name: str | None, target_name: str) -> Path | None:
    """Directory `name`; the shipped drafter's for None; nothing for `none`, or where none is shipped."""
    from dspark.drafters.shipped import shipped_drafter

    if name is None:
        return shipped_drafter(target_name)
    return None if name == NO_DRAFTER else Path(name)


def open_drafter(directory: Path, target: "Target") -> "DSpark":
    """The drafter in `directory`, packed for decoding."""
    import torch

    from dspark.drafters.registry import SharingTarget, load_drafter
    from dspark.nn.kernel_choice import choose_kernel

    kernel = choose_kernel("auto", torch.bfloat16).kernel
    return load_drafter(directory, cast("SharingTarget", target), kernel=kernel)
