"""One process's part in a training job: to train the drafter, or to run the target for those who do."""

from collections.abc import Callable
from pathlib import Path

from dspark.training.hidden_states import LocalStates, RemoteStates, StateServer, StateSource
from dspark.training.placement import Placement, serve
from dspark.training.progress import Progress
from dspark.training.recipe import Recipe
from dspark.training.run import TrainReport, train
from dspark.training.setup import taps_of
from dspark.training.trainable_target import TrainableTarget
from dspark.training.trainer import Cadence


def take_part(
    placement: Placement,
    recipe: Recipe,
    target: TrainableTarget,
    directory: Path,
    teacher_directory: Path | None = None,
    cadence: Cadence | None = None,
    watch: Callable[[Progress], None] = lambda progress: None,
    source: StateSource | None = None,
) -> TrainReport | None:
    """`run.train` in a process that trains; None from one that has served the target's states to the end.

    States come from `source` where it is given: trainers ask it, or the processes that serve them do.
    """
    if not placement.trains:
        serve(StateServer(source or LocalStates(target), taps_of(recipe)), placement.channels)
        return None
    served = [RemoteStates(channel, target.info.hidden_size) for channel in placement.channels]
    try:
        nearest = served[0] if served else source
        return train(recipe, target, directory, teacher_directory, cadence, watch, placement.world, nearest)
    finally:
        for each in served:
            each.close()
