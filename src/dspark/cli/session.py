"""What generate, chat and eval decode with: a target, its text codec and a drafter, opened by name."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dspark.cli import console
from dspark.errors import CompatibilityError, ConfigError

if TYPE_CHECKING:
    from dspark.cli.options import Dtype
    from dspark.data.text import TextCodec
    from dspark.drafters.prompt_lookup import PromptLookup
    from dspark.engine.draft_limit import DraftLimit
    from dspark.engine.models import Models
    from dspark.engine.options import DecodeOptions
    from dspark.engine.reference import Generation, ReferenceLoop
    from dspark.nn.kernel_choice import KernelName
    from dspark.targets.native import NativeTarget
    from dspark.targets.transformers_adapter import TransformersTarget
    from dspark.types import SamplingParams

SEEDED = (
    "a seed fixes the text, so rounds draft all {gamma} tokens, or copy as many as anywhere, whatever this machine's "
    "speed, which may be slower than plain decoding; --max-draft-tokens N drafts fewer (0: none)"
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
    lookup: bool | None = None,
) -> Session:
    """Load target and drafter, with a spinner on the terminal.

    With `measure_for`, and no cap in `options`, a round holds as many drafts as pay on this machine for such requests,
    by its cost profile; but all where a seed was given (`seeded`) and decides what is drawn. `lookup` asks for copied
    drafts or refuses them; None is for as many as pay beside a drafter. The cap holds for copies, too.

    Raises:
        ConfigError: copies are asked for and no drafts are allowed.
    """
    if lookup and options.max_draft_tokens == 0:
        raise ConfigError("--lookup asks for copied drafts, --max-draft-tokens 0 allows none. Drop one of the two.")
    with console.status(f"Loading {target_name} ...", quiet=quiet):
        from dspark.engine.models import open_models
        from dspark.engine.reference import ReferenceLoop

        models = open_models(target_name, drafter_name, "bf16" if dtype == "auto" else dtype)
        limit = None
        if measure_for is not None and models.drafter is not None and options.max_draft_tokens is None:
            limit = _affordable(models, measure_for, seeded)
            options = replace(options, max_draft_tokens=limit.drafts)
        options = replace(options, lookup=_lookup(lookup, models.drafter is not None, options.max_draft_tokens, limit))
    remark = None if limit is None else _remark(limit, options.lookup is not None)
    if remark is not None:
        console.note(remark, quiet)
    return Session(models.codec, ReferenceLoop(models.target, models.drafter, options), models.drafter_directory)


def _affordable(models: "Models", params: "SamplingParams", seeded: bool) -> "DraftLimit":
    from dspark.core.params import is_greedy
    from dspark.drafters.prompt_lookup import PromptLookup
    from dspark.engine.draft_limit import DraftLimit
    from dspark.engine.start_profile import start_limit

    if seeded and not is_greedy(params):  # the number of drafts changes no law, but it does change draws
        gamma = models.speculative()[0].info.gamma
        return DraftLimit(gamma, SEEDED.format(gamma=gamma), PromptLookup())
    return start_limit(models, params)


def _lookup(
    asked: bool | None, beside_drafter: bool, cap: int | None, limit: "DraftLimit | None"
) -> "PromptLookup | None":
    from dspark.drafters.prompt_lookup import PromptLookup

    default = PromptLookup()
    if (cap == 0 and limit is None) or not (beside_drafter if asked is None else asked):
        return None
    if limit is not None:
        return limit.lookup or (default if asked else None)
    return default if cap is None else replace(default, drafts=min(default.drafts, cap))


def _remark(limit: "DraftLimit", copying: bool) -> str | None:
    if limit.drafts > 0:
        return limit.warning
    reason = limit.warning or "drafting does not pay on this machine"
    instead = "only copying what repeats" if copying else "decoding plainly"
    return f"{reason}; {instead} (--max-draft-tokens forces drafts)"


def open_trainable_target(name: str, kernel: "KernelName" = "auto") -> "NativeTarget | TransformersTarget":
    """The target called `name` in float32; `kernel` runs it if the native decoder does, else transformers."""
    from dspark.targets.native import NativeTarget
    from dspark.targets.registry import load_target
    from dspark.targets.transformers_adapter import TransformersTarget

    target = load_target(name, "fp32", kernel)
    assert isinstance(target, NativeTarget | TransformersTarget)
    return target


def open_native_target(name: str, kernel: "KernelName" = "auto") -> "NativeTarget":
    """The target called `name`, its weights within reach in float32, run by `kernel`.

    Raises CompatibilityError if transformers runs it.
    """
    from dspark.targets.native import NativeTarget
    from dspark.targets.registry import load_target

    target = load_target(name, "fp32", kernel)
    if not isinstance(target, NativeTarget):
        raise CompatibilityError(f"{name} runs through transformers; this needs a target of the native decoder.")
    return target
