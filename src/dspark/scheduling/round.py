"""What a scheduler is told, and what it answers. Shapes: B requests of the batch, gamma drafts each."""

import math
from dataclasses import dataclass, field, replace

import numpy as np

from dspark.errors import ConfigError
from dspark.scheduling.arrays import Floats, Ints
from dspark.scheduling.cost import CostModel, RoundSeconds

WHOLE = "iu"
"""Kinds of numpy types that hold whole numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Who takes part in a round: everything known before a token is drafted, so nothing here can bias the text.

    `keys` [B] name the requests, the same in every round and never reused; the row of a request is its slot.
    `context` is the mean number of committed positions per request. `caps` [B] bound the drafts of each request
    (0: it does not draft), `floors` [B] are verified whatever the confidences say and whether or not drafting pays: a
    round with floors drafts, unless drafting is switched off (`FixedLength(0)`). Equal to the caps, floors give
    calibration labels that are not censored: choose such requests beforehand. `weights` [B] say how much a token of
    each request is worth. `max_tokens` bounds the rows of the verifying forward, the anchors included. All blocks of
    the round have `slots` (None: gamma), and no cap is above that. `reach` is how many drafts costs are
    looked at for, to tell their shape from noise (None: `room`). The forward has `beside` rows of no round, as of
    prompts.

    Raises:
        ConfigError: a field cannot be; the message names it.
    """

    keys: Ints
    gamma: int
    context: float = 0.0
    caps: Ints | None = None
    floors: Ints | None = None
    weights: Floats | None = None
    max_tokens: int | None = None
    slots: int | None = None
    reach: int | None = None
    beside: int = 0
    requests: int = field(init=False, repr=False)
    """B."""
    drafting: int = field(init=False, repr=False)
    """Number of requests that draft when the round does."""
    room: int = field(init=False, repr=False)
    """The most drafts that one round can verify."""
    floor_tokens: int = field(init=False, repr=False)
    """Drafts that are verified whatever the confidences say."""
    anchor_value: float = field(init=False, repr=False)
    """Worth of the tokens that come without any draft: one for each request."""

    def __post_init__(self) -> None:
        self._check_keys()
        if self.gamma < 1:
            raise ConfigError(f"gamma is {self.gamma}; expected at least one draft per request")
        if not 0 <= self.context < math.inf:
            raise ConfigError(f"context is {self.context}; expected the mean number of committed positions, 0 or more")
        for name, rows in (("caps", self.caps), ("floors", self.floors)):
            if rows is not None and rows.dtype.kind not in WHOLE:
                raise ConfigError(f"{name} are of type {rows.dtype}; expected whole numbers")
        self._count()
        if self.max_tokens is not None and self.max_tokens < self.requests:
            raise ConfigError(
                f"max_tokens is {self.max_tokens} for {self.requests} requests; every request needs one row for its "
                "anchor: raise it or split the batch"
            )
        self._check_rows()

    def _check_keys(self) -> None:
        if not isinstance(self.keys, np.ndarray):
            raise ConfigError(f"keys are of type {type(self.keys).__name__}; expected an array of whole numbers")
        if self.keys.ndim != 1 or not len(self.keys):
            raise ConfigError(f"keys has shape {self.keys.shape}; expected one key for each of at least one request")
        if self.keys.dtype.kind not in WHOLE:
            raise ConfigError(f"keys are of type {self.keys.dtype}; expected whole numbers that name the requests")
        ordered = np.sort(self.keys)
        if np.count_nonzero(ordered[1:] == ordered[:-1]):
            twice = ordered[1:][ordered[1:] == ordered[:-1]][0]
            raise ConfigError(
                f"keys hold {twice} twice; expected another key for each request, or they share a history"
            )

    def _check_rows(self) -> None:
        for name, rows in (("caps", self.caps), ("floors", self.floors), ("weights", self.weights)):
            if rows is not None and rows.shape != self.keys.shape:
                raise ConfigError(f"{name} has shape {rows.shape}; expected {self.keys.shape}, one entry per request")
        if self.caps is not None and not (self.caps.min() >= 0 and self.caps.max() <= self.gamma):
            raise ConfigError(f"caps are {self.caps.min()} to {self.caps.max()}; expected 0 to gamma = {self.gamma}")
        if self.slots is not None and not (1 <= self.slots <= self.gamma and np.all(self._most() <= self.slots)):
            raise ConfigError(f"slots are {self.slots}; expected 1 to gamma = {self.gamma}, and no cap above")
        if self.beside < 0:
            raise ConfigError(f"beside is {self.beside}; expected a number of rows, 0 or more")
        if self.floors is not None and not (self.floors.min() >= 0 and np.all(self.floors <= self._most())):
            raise ConfigError("floors must lie between 0 and the request's cap; lower them or raise the caps")
        if self.floors is not None and self.floor_tokens > self.room:
            raise ConfigError(f"floors ask for {self.floor_tokens} drafts, max_tokens leaves {self.room}: raise it")
        if self.weights is not None and not (self.weights.min() > 0 and np.isfinite(self.weights.max())):
            raise ConfigError(f"weights are {self.weights.min()} to {self.weights.max()}; expected positive numbers")

    def _count(self) -> None:
        """Fill in what follows from the terms, which each decision asks for several times."""
        requests = len(self.keys)
        most = requests * self.gamma if self.caps is None else int(self.caps.sum())
        room = most if self.max_tokens is None else min(most, self.max_tokens - requests)
        counts = {
            "requests": requests,
            "drafting": requests if self.caps is None else int(np.count_nonzero(self.caps)),
            "room": room,
            "floor_tokens": 0 if self.floors is None else int(self.floors.sum()),
            "anchor_value": float(requests) if self.weights is None else float(self.weights.sum()),
        }
        for name, value in counts.items():
            object.__setattr__(self, name, value)

    @property
    def width(self) -> int:
        """Slots of a block."""
        return self.gamma if self.slots is None else self.slots

    @property
    def share(self) -> float:
        """Where the width lies between one slot, 0, and a whole block, 1."""
        return (self.width - 1) / (self.gamma - 1) if self.gamma > 1 else 1.0

    @property
    def highest_floor(self) -> int:
        """The widest that a block must be, 0 without floors."""
        return 0 if self.floors is None else int(self.floors.max())

    def narrowed(self, slots: int) -> "Batch":
        """This batch with blocks of `slots`; itself if that is their width. Floors must not be above."""
        if slots == self.width:
            return self
        narrowed = object.__new__(Batch)  # keys were checked: that need not be done again, round after round
        for name in Batch.__slots__:
            object.__setattr__(narrowed, name, getattr(self, name))
        caps = np.minimum(self._most(), np.full(self.requests, slots))
        reach = self.room if self.reach is None else self.reach
        for name, value in {"slots": slots, "caps": caps, "reach": reach}.items():
            object.__setattr__(narrowed, name, value)
        narrowed._count()
        narrowed._check_rows()
        return narrowed

    def round_seconds(self, cost: CostModel) -> RoundSeconds:
        """What a round of this batch costs at 0 ... `room` drafts.

        Rows beside it are read in any case and belong to no round, but drafts come on top of them: a draft costs what
        one more row costs there, and is worth it if it brings more tokens in that time than rounds alone would.
        """
        reach, beside = self.room if self.reach is None else self.reach, self.beside
        seconds = cost.round_seconds(self.requests, self.drafting, beside + reach, self.context, self.share)
        if not beside and reach == self.room:
            return seconds
        drafted = seconds.drafted[beside : beside + self.room + 1]
        return replace(seconds, drafted=seconds.drafted[0] + np.maximum(drafted - drafted[0], 0.0))

    def value(self, survival: Floats) -> Floats:
        """Worth [gamma, B] of the candidates: weighted survival, 0 beyond the cap; floors are included."""
        worth = survival if self.weights is None else survival * self.weights
        return worth if self.caps is None else np.where(_positions(self.gamma) <= self.caps, worth, 0.0)

    def optional(self, value: Floats) -> Floats:
        """`value` [gamma, B] with the floors, which need no choice, set to 0."""
        return value if self.floors is None else np.where(_positions(self.gamma) <= self.floors, 0.0, value)

    def _most(self) -> Ints | int:
        return self.gamma if self.caps is None else self.caps


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Decided before drafting: whether this round drafts, and what is known of the drafts it will verify.

    All of them when `full`; else at most `budget`, or as many as the scheduler finds worth it (None). `number` counts
    the scheduler's rounds; `seconds` is what the round was expected to take at each length, to compare with the clock.
    A `probe` is not expected to pay: it is to show whether drafting would. One that is `kept` is that of the round
    before, for the same requests.
    """

    batch: Batch
    number: int
    drafts: bool = True
    full: bool = False
    budget: int | None = None
    probe: bool = False
    seconds: RoundSeconds | None = None
    kept: bool = False

    @property
    def uniform(self) -> bool:
        """Whether every request will verify its whole block, so that no ragged batch is needed."""
        return self.drafts and self.full and self.batch.room == self.batch.requests * self.batch.width


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What became of a round: drafts verified `lengths` [B] and surviving `accepted` [B] per request."""

    plan: Plan
    lengths: Ints
    accepted: Ints


def _positions(gamma: int) -> Ints:
    return np.arange(1, gamma + 1)[:, None]
