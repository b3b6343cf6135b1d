"""How many pages the engine allocates, decided once, before anything is allocated."""

from dataclasses import dataclass

from dspark.errors import CapacityError
from dspark.nn.pages import PAGE, pages_for

SHARE = 0.5
"""Part of the free memory that pages may take unless told otherwise; activations and other programs need the rest."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`pages` of `page_bytes` each, target and drafters together."""

    pages: int
    page_bytes: int

    @property
    def bytes(self) -> int:
        """Size of all pages."""
        return self.pages * self.page_bytes

    @property
    def positions(self) -> int:
        """Positions of all pages."""
        return self.pages * PAGE


@dataclass(frozen=True, slots=True)
class Demand:
    """What requests can need at most: `requests` at once of up to `positions` (a drafted block included).

    `page_bytes` is the size of a page of target and drafters together: L layers, 2K heads of keys and values, PAGE
    positions, width h, each L * 2K * PAGE * h elements. 0 where models keep no pages.
    """

    requests: int
    positions: int
    page_bytes: int

    @property
    def longest(self) -> int:
        """Pages of a request of full length."""
        return pages_for(self.positions)


def plan_memory(demand: Demand, available: int | None, share: float = SHARE) -> MemoryPlan:
    """As many pages as the requests can need, or as fit into `share` of the `available` bytes (None: not known).

    Raises:
        CapacityError: not even one request of full length fits.
    """
    wanted = demand.requests * demand.longest
    if available is None or demand.page_bytes == 0:
        return MemoryPlan(wanted, demand.page_bytes)
    pages = min(wanted, int(share * available) // demand.page_bytes)
    if pages < demand.longest:
        raise CapacityError(_too_little(demand, pages, available, share))
    return MemoryPlan(pages, demand.page_bytes)


def _too_little(demand: Demand, pages: int, available: int, share: float) -> str:
    needed, free = _mebibytes(demand.longest * demand.page_bytes), _mebibytes(available)
    shorter = f"set pages={pages} to serve requests of up to {pages * PAGE} positions, " if pages else ""
    return (
        f"the keys and values of one request of {demand.positions} positions take {needed}; found {free} of free "
        f"memory, of which pages may take {share:.0%}. Free memory, {shorter}or set pages={demand.longest} to insist"
    )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
