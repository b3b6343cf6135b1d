"""The cost curve of a machine: seconds by tokens, one line a context; needs matplotlib (the extra `plots`)."""

from pathlib import Path

from dspark.engine.round_profile import RoundProfile
from dspark.figures import load_matplotlib

COLORS = ("#5e81ac", "#d08770", "#a3be8c", "#b48ead", "#ebcb8b", "#88c0d0")
DRAFTING = "#bbbbbb"


def save_cost_figure(profile: RoundProfile, path: Path, title: str = "") -> None:
    """Draw verification by tokens and context, and blocks by drafts, both axes logarithmic, into a PNG."""
    table = profile.table
    figure = load_matplotlib()(figsize=(6.4, 4.4), layout="constrained")
    axes = figure.add_subplot()
    for i, (context, row) in enumerate(zip(table.contexts, table.verify_seconds, strict=True)):
        milliseconds = [1000 * seconds for seconds in row]
        axes.plot(
            table.tokens, milliseconds, marker="o", markersize=3, color=COLORS[i % len(COLORS)],
            label=f"verify after {context} positions",
        )  # fmt: skip
    if profile.drafts:
        milliseconds = [1000 * seconds for seconds in profile.block_seconds]
        axes.plot(profile.drafts, milliseconds, marker="s", markersize=3, color=DRAFTING, label="draft, one request")
    axes.set(yscale="log", xlabel="tokens", ylabel="milliseconds", title=title)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_yticks([value for value in _round_values() if axes.get_ylim()[0] <= value <= axes.get_ylim()[1]])
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(visible=True, which="major", linewidth=0.3)
    axes.legend(fontsize="small", frameon=False)
    figure.savefig(path, dpi=150, format="png")


def _round_values() -> list[float]:
    """1, 2 and 5 times powers of ten: milliseconds that people read off."""
    return [digit * 10.0**power for power in range(-3, 7) for digit in (1, 2, 5)]
