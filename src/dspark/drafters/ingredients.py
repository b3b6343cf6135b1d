"""What a drafter's layers may have beyond Qwen3's: sizes only, each switched on by a field of its configuration."""

from dataclasses import dataclass

from dspark.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Convolution:
    """DFlash 2's grouped dynamic depthwise convolution: `taps` slots back, kernels shared by `group` channels."""

    taps: int = 2
    group: int = 16

    def __post_init__(self) -> None:
        _check_counts("convolution", {"taps": self.taps, "group": self.group})


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `routed` experts of inner width `width`, of which `active` serve a slot.

    Beside them one shared expert, as wide as the dense MLP that the mixture replaces, serves every slot.
    """

    routed: int = 8
    active: int = 2
    width: int = 256

    def __post_init__(self) -> None:
        _check_counts("experts", {"routed": self.routed, "active": self.active, "width": self.width})
        if self.active > self.routed:
            raise ConfigError(f"experts: {self.active} active of {self.routed} routed; expected at most all of them")


@dataclass(frozen=True, slots=True)
class HyperConnections:
    """Manifold-constrained hyper-connections: `streams` residual streams, mixed by matrices that `iterations` steps of
    Sinkhorn-Knopp make doubly stochastic. The defaults are the paper's (arXiv 2512.24880)."""

    streams: int = 4
    iterations: int = 20

    def __post_init__(self) -> None:
        _check_counts("hyper_connections", {"iterations": self.iterations})
        if self.streams < 2:
            raise ConfigError(
                f"hyper_connections: streams is {self.streams}; expected at least 2 (one stream is the plain residual: "
                "leave hyper_connections out)"
            )


def _check_counts(name: str, counts: dict[str, int]) -> None:
    for key, count in counts.items():
        if count < 1:
            raise ConfigError(f"{name}: {key} is {count}; expected at least 1")
