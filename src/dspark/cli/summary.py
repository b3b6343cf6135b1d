"""What is told about an answer: a line on stderr, or JSON."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspark.engine.result import GenerationResult


def summary(result: "GenerationResult") -> str:
    """Tokens, speed and, with a drafter, tau and acceptance by position."""
    figures = result.metrics
    parts = [f"{len(result.token_ids)} tokens", f"{figures['tokens_per_second']:.1f} tokens/s"]
    if figures["drafted_tokens"]:
        shares = " ".join(f"{share:.0%}" for share in figures["acceptance_by_position"])
        parts += [f"tau {figures['tau']:.2f}", f"accepted by position {shares}"]
    return f"[{', '.join(parts)}; {result.finish_reason}]"


def answer_json(result: "GenerationResult") -> dict[str, Any]:
    """The shape scripts rely on: text, token_ids, finish_reason, metrics."""
    return {key: getattr(result, key) for key in ("text", "token_ids", "finish_reason", "metrics")}
