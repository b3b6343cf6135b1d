"""Recognises drafter packagings that are not DeepSpec's, so that they are refused by name."""

from dspark.drafters.formats.fields import JsonObject

EXPECTED = "expected DeepSpec's Qwen3DSparkModel, Gemma4DSparkModel or Qwen3Eagle3Model"

BY_KEY = {
    "speculators_model_type": "a vLLM speculators checkpoint",
    "dspark_target_layer_ids": "a DeepSeek-V4 checkpoint with a bundled drafter",
    "projector_type": "a SpecForge checkpoint",
}

BY_ARCHITECTURE = {
    "Gemma4Eagle3Model": "a DeepSpec Eagle3 drafter for Gemma 4",
    "DSparkDraftModel": "a SpecForge or TorchSpec checkpoint",
    "DSparkSpeculator": "a vLLM speculators checkpoint",
    "DFlashDraftModel": "a z-lab DFlash checkpoint (fill-in layout, see docs/algorithms.md)",
    "DFlash2DraftModel": "a z-lab DFlash 2 checkpoint (fill-in layout, see docs/algorithms.md)",
    "Lfm2DSparkDraftModel": "an LFM2 drafter",
    "LlamaForCausalLMEagle3": "an Eagle3 checkpoint in SGLang's packaging",
}


def packaging(config: JsonObject) -> str:
    """In words, what this config.json belongs to."""
    nested = config.get("dflash_config")
    keys = {*config, *(nested if isinstance(nested, dict) else ())}
    for key, name in BY_KEY.items():
        if key in keys:
            return name
    architectures = config.get("architectures") or ["nothing"]
    first = str(architectures[0]) if isinstance(architectures, list) else str(architectures)
    return BY_ARCHITECTURE.get(first, f"architecture {first!r}")
