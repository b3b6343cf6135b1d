"""Pages of K/V memory: who holds them, who may read them, and what they hold already."""

from collections.abc import Sequence

from dspark.engine.lease import Lease
from dspark.engine.prefix_index import PrefixIndex
from dspark.errors import CapacityError, ConfigError
from dspark.nn.pages import PAGE, PageTable


class PageManager:
    """`pages` pages of `page` positions, lent to requests that hold at most `longest` each (default: all).

    Every page is in one of three states: free, cached (computed, read by nobody, kept for a text that begins alike) or
    used by one request or more. With `prefix_caching` off, none is cached or shared. Nothing here grows beyond the
    number of pages.
    """

    def __init__(self, pages: int, page: int = PAGE, prefix_caching: bool = True, longest: int | None = None) -> None:
        if pages < 1 or page < 1:
            raise ConfigError(f"found {pages} pages of {page} positions; expected 1 or more of both")
        self.pages, self.page = pages, page
        self.prefix_caching = prefix_caching
        self._longest = pages if longest is None else min(longest, pages)
        self._free = list(range(pages - 1, -1, -1))
        self._readers = [0] * pages
        self._index = PrefixIndex()

    @property
    def free(self) -> int:
        """Pages that hold nothing of use."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Pages that nobody reads, kept until they are needed."""
        return self._index.idle

    @property
    def used(self) -> int:
        """Pages of open leases, shared ones counted once."""
        return self.pages - self.free - self.cached

    @property
    def available(self) -> int:
        """Pages that a request could get now."""
        return self.free + self.cached

    def open(self, token_ids: Sequence[int], salt: str = "") -> Lease:
        """A lease on the cached pages that `token_ids` begins with, never all of it: its last token gives the logits.

        Texts share pages only under equal `salt`. It must tell apart whatever else K/V depend on (adapters, a drafter
        that was not run), or users who must not notice each other.
        """
        lease = Lease(PageTable(self._longest), salt)
        if self.prefix_caching:
            for first in range(0, len(token_ids) - self.page, self.page):
                page = self._index.find(lease.parent, tuple(token_ids[first : first + self.page]))
                if page is None:
                    break
                self._read(page)
                lease.table.extend([page])
                self._shared_up_to(lease, page)
            lease.hit = lease.length = lease.shared
        return lease

    def reserve(self, lease: Lease, length: int, spare: int = 0) -> bool:
        """Let the lease have pages for all positions below `length`.

        False, with nothing taken, if there are too few, or if fewer than `spare` would be left for others.

        Raises:
            CapacityError: a request may never hold that many.
        """
        if length > self._longest * self.page:
            raise CapacityError(
                f"{length} positions do not fit into the {self._longest} pages that a request may hold "
                f"({self._longest * self.page} positions); ask for fewer tokens, or give the engine more pages"
            )
        missing = max(0, -(-length // self.page) - lease.table.count)
        if missing + spare > self.available:
            return False
        lease.table.extend([self._take() for _ in range(missing)])
        return True

    def commit(self, lease: Lease, token_ids: Sequence[int]) -> None:
        """`token_ids` stand at the next positions (from `lease.length` on), computed by target *and* drafter, for good.

        Pages that became full may be read by others from now on. Where another request computed the same page
        meanwhile, the lease takes that one and gives its own back: the entry of `lease.table` changes, so whatever was
        copied from the table must be copied anew after a commit.
        """
        lease.length += len(token_ids)
        room = lease.table.count * self.page
        if lease.length > room:
            raise AssertionError(f"{lease.length} positions are committed, and only {room} have pages")
        if self.prefix_caching:
            lease.pending.extend(token_ids)
            while len(lease.pending) >= self.page:
                self._publish(lease, tuple(lease.pending[: self.page]))
                del lease.pending[: self.page]

    def close(self, lease: Lease) -> None:
        """Give all pages back, the last one first: what others may read stays cached until its place is needed."""
        pages = lease.table.ids[: lease.table.count].tolist()
        lease.table.keep(0)
        for page in reversed(pages):
            self._leave(page)

    def _publish(self, lease: Lease, tokens: tuple[int, ...]) -> None:
        slot = lease.shared // self.page
        own = int(lease.table.ids[slot])
        page = self._index.find(lease.parent, tokens)
        if page is None:
            page = own
            self._index.add(lease.parent, tokens, page)
        else:
            self._read(page)
            lease.table.ids[slot] = page
            self._leave(own)
        self._shared_up_to(lease, page)

    def _shared_up_to(self, lease: Lease, page: int) -> None:
        lease.parent = page
        lease.shared += self.page

    def _read(self, page: int) -> None:
        self._readers[page] += 1
        self._index.take_up(page)

    def _leave(self, page: int) -> None:
        self._readers[page] -= 1
        if self._readers[page] > 0:
            return
        if page in self._index:
            self._index.lay_aside(page)
        else:
            self._free.append(page)

    def _take(self) -> int:
        page = self._free.pop() if self._free else self._index.give_up()
        self._readers[page] = 1
        return page
