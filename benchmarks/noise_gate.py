"""How often a profile takes noise for a shape, finds a real slope, and how far the fastest and the median run are off.

    python benchmarks/noise_gate.py [--trials N] [--seed S]

Profiles are synthetic: the runs of each point are 1 s times a disturbance, in turns, and go through the same code as
measured ones. `flat`: the largest and smallest rate, over numbers of turns, of flat curves that count as resolved.
`slope`: the same for curves that rise by 10 and 30 % from the first point to the last. Second table: root mean square
error of the ratio of two points that cost the same, by the fastest run and by the median run. Third table: throughput
lost by the number of drafts chosen from a profile of eight sizes and four turns, on average, where an unclear curve is
read as all or nothing, as a line where that rises clearly, and always as a line.
"""

import argparse
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dspark.engine.draft_limit import NEAR, best_limit
from dspark.engine.timing_turns import common_noise, timing
from dspark.scheduling import CostTable
from dspark.scheduling.cost_table import flat_range
from dspark.scheduling.trend import Line, rises

Runs = NDArray[np.float64]
Disturb = Callable[[np.random.Generator, tuple[int, int]], Runs]
POINTS = (2, 3, 5, 8, 16, 22, 48)
TURNS = (4, 5, 10, 30)


def phases(random: np.random.Generator, shape: tuple[int, int]) -> Runs:
    """Every other turn is up to a third slower as a whole, on top of small differences."""
    slow = (random.random(shape[1]) < 0.5) * random.random(shape[1]) / 3
    return (1 + slow) * (1 + 0.01 * random.exponential(size=shape))


DISTURBANCES: Mapping[str, Disturb] = {
    "normal, 3 %": lambda random, shape: 1 + 0.03 * random.standard_normal(shape),
    "log-normal, 5 %": lambda random, shape: np.exp(0.05 * random.standard_normal(shape)),
    "exponential, 5 %": lambda random, shape: 1 + 0.05 * random.exponential(size=shape),
    "uniform, 20 %": lambda random, shape: 1 + 0.2 * random.random(shape),
    "half of all runs, 30 %": lambda random, shape: (
        1 + 0.005 * random.exponential(size=shape) + (random.random(shape) < 0.5) * 0.3 * random.random(shape)
    ),
    "half of all turns, 33 %": phases,
}


def resolved(runs: Runs) -> bool:
    """Whether a profile of `runs` [points, turns] has a shape."""
    timed = [timing(row) for row in runs.tolist()]
    seconds = tuple(point.seconds for point in timed)
    tokens = tuple(range(1, len(timed) + 1))
    table = CostTable(tokens, (0,), (seconds,), (1,), (0.0,), noise=common_noise(timed))
    return table.round_seconds(1, 1, len(timed) - 1, 0).resolved


def rate(disturb: Disturb, points: int, turns: int, rise: float, trials: int, seed: int) -> float:
    """Share of resolved profiles of a curve that rises by `rise`."""
    random = np.random.default_rng(seed)
    price = np.linspace(1, 1 + rise, points)[:, None]
    return sum(resolved(price * disturb(random, (points, turns))) for _ in range(trials)) / trials


def ratio_errors(disturb: Disturb, turns: int, trials: int, seed: int) -> tuple[float, float]:
    """Root mean square error of a ratio of equal points, by the fastest run and by the median."""
    random = np.random.default_rng(seed)
    runs = np.array([disturb(random, (2, turns)) for _ in range(trials)])
    errors = [found[:, 1] / found[:, 0] - 1 for found in (runs.min(axis=2), np.median(runs, axis=2))]
    fastest, median = (float(np.sqrt(np.mean(error**2))) for error in errors)
    return fastest, median


ACCEPTANCE, DRAFT_SECONDS, MORE_DRAFT_SECONDS = 0.6, 0.15, 0.15
"""Of the third table: each draft's chance, and the time of one draft and of all further ones, in plain steps."""


def losses(disturb: Disturb, rise: float, turns: int, trials: int, seed: int, points: int = 8) -> NDArray[np.float64]:
    """Mean share of the best throughput lost by [all or nothing, a clear line, any line] where points are unclear."""
    random, sizes = np.random.default_rng(seed), np.arange(1, points + 1)
    price, drafts = np.linspace(1, 1 + rise, points), np.arange(points)
    expected = np.cumsum(ACCEPTANCE**drafts)
    drafting = np.where(drafts > 0, DRAFT_SECONDS + MORE_DRAFT_SECONDS * drafts / (points - 1), 0.0)
    true, ends, all_sizes = expected / (price + drafting), [0, points - 1], list(range(points))
    lost = np.zeros(3)
    for _ in range(trials):
        timed = [timing(row) for row in (price[:, None] * disturb(random, (points, turns))).tolist()]
        seconds, noise = np.array([point.seconds for point in timed]), common_noise(timed)
        line = Line.through(sizes, seconds).at(sizes)
        clear = seconds.max() >= seconds.min() * (1 + noise * flat_range(points))
        fitted = line if rises(sizes, seconds, noise) else None
        readings = (
            (seconds, all_sizes if clear else ends),
            (seconds, all_sizes) if clear else (seconds, ends) if fitted is None else (fitted, all_sizes),
            (seconds if clear else line, all_sizes),
        )
        for rule, (read, choices) in enumerate(readings):
            times, tokens = [float((read + drafting)[k]) for k in choices], [float(expected[k]) for k in choices]
            lost[rule] += 1 - true[choices[best_limit(times, tokens, max(noise, NEAR))]] / true.max()
    mean: NDArray[np.float64] = lost / trials
    return mean


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print("| disturbance | points | flat | slope of 10 % | slope of 30 % |\n| --- | --- | --- | --- | --- |")
    for name, disturb in DISTURBANCES.items():
        for points in POINTS:
            cells = []
            for rise in (0.0, 0.1, 0.3):
                rates = [rate(disturb, points, turns, rise, options.trials, options.seed) for turns in TURNS]
                cells.append(f"{min(rates):.1%} to {max(rates):.1%}")
            print(f"| {name} | {points} | {' | '.join(cells)} |", flush=True)
    columns = " | ".join(f"{turns} turns" for turns in TURNS)
    print(f"\n| fastest / median | {columns} |\n|{' --- |' * (len(TURNS) + 1)}")
    for name, disturb in DISTURBANCES.items():
        errors = [ratio_errors(disturb, turns, 20 * options.trials, options.seed) for turns in TURNS]
        print(f"| {name} | {' | '.join(f'{fastest:.2%} / {median:.2%}' for fastest, median in errors)} |")

    rises_shown = (0.0, 0.1, 0.3, 0.6, 1.0)
    columns = " | ".join(f"rise of {rise:.0%}" for rise in rises_shown)
    print(f"\n| lost by all or nothing / a clear line / any line | {columns} |\n|{' --- |' * (len(rises_shown) + 1)}")
    for name, disturb in DISTURBANCES.items():
        cells = [losses(disturb, rise, 4, options.trials, options.seed) for rise in rises_shown]
        print(f"| {name} | {' | '.join(' / '.join(f'{loss:.1%}' for loss in cell) for cell in cells)} |")


if __name__ == "__main__":
    main()
