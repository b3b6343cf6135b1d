"""What generate, chat and eval decode with: a target, its text codec and a drafter, opened by name."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.cli import console
from dspark.errors import CompatibilityError

if TYPE_CHECKING:
    from dspark.cli.options import Dtype
    from dspark.data.text import TextCodec
    from dspark.engine.draft_limit import DraftLimit
    from dspark.engine.options import DecodeOptions
    from dspark.engine.reference import Generation, ReferenceLoop
    from dspark.targets.native import NativeTarget
    from dspark.types import SamplingParams

SEEDED = (
    "a seed fixes the text, so rounds draft all {gamma} tokens whatever this machine's speed, which may be slower than "
    "plain decoding; --max-draft-tokens N drafts fewer (0: none)"
)


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
        from dspark.engine.drafter_hash import drafter_hash

        return None if self.drafter_directory is None else drafter_hash(self.drafter_directory)


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
    measure_for: "SamplingParams | None" = None,
    seeded: bool = False,
) -> Session:
    """Load target and drafter, with a spinner on the terminal.

    With `measure_for`, and no cap in `options`, a round holds as many drafts as pay on this machine for such requests,
    by its cost profile; but all where a seed was given (`seeded`) and decides what is drawn.
    """
    with console.status(f"Loading {target_name} ...", quiet=quiet):
        from dspark.core.params import is_greedy
        from dspark.engine.models import open_models
        from dspark.engine.reference import ReferenceLoop
        from dspark.engine.start_profile import start_limit

        models = open_models(target_name, drafter_name, "bf16" if dtype == "auto" else dtype)
        drafter, remark = models.drafter, None
        if measure_for is not None and drafter is not None and options.max_draft_tokens is None:
            if seeded and not is_greedy(measure_for):  # the number of drafts changes no law, but it does change draws
                remark = SEEDED.format(gamma=drafter.info.gamma)
            else:
                limit = start_limit(models, measure_for)
                options, remark = replace(options, max_draft_tokens=limit.drafts), _remark(limit)
    if remark is not None:
        console.note(remark, quiet)
    return Session(models.codec, ReferenceLoop(models.target, drafter, options), models.drafter_directory)


def _remark(limit: "DraftLimit") -> str | None:
    if limit.drafts > 0:
        return limit.warning
    reason = limit.warning or "drafting does not pay on this machine"
    return f"{reason}; decoding plainly (--max-draft-tokens forces drafts)"


def open_native_target(name: str) -> "NativeTarget":
    """The target called `name` in float32, its weights within reach.

    Raises CompatibilityError if transformers runs it.
    """
    from dspark.targets.native import NativeTarget
    from dspark.targets.registry import load_target

    target = load_target(name, "fp32")
    if not isinstance(target, NativeTarget):
        raise CompatibilityError(f"{name} runs through transformers; this needs a target of the native decoder.")
    return target
