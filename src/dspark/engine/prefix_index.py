"""Full pages found again by what they hold, and the order in which they are given up."""

from collections import OrderedDict
from typing import TypeAlias

Parent: TypeAlias = int | str
PageTokens: TypeAlias = tuple[int, ...]


class PrefixIndex:
    """Cached pages by (parent, tokens): the page before them, or a salt for the first page of a text.

    A page number names its whole past as long as the page is cached, so that equal keys mean equal texts from the first
    token on; nothing is taken for equal because hashes are. That holds because a page leaves after those that hang on
    it: whoever reads a page reads its parents too, and lays them aside after it.
    """

    def __init__(self) -> None:
        self._pages: dict[tuple[Parent, PageTokens], int] = {}
        self._keys: dict[int, tuple[Parent, PageTokens]] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def idle(self) -> int:
        """Cached pages that nobody reads."""
        return len(self._idle)

    def __contains__(self, page: int) -> bool:
        return page in self._keys

    def find(self, parent: Parent, tokens: PageTokens) -> int | None:
        """The page that holds `tokens` behind `parent`."""
        return self._pages.get((parent, tokens))

    def add(self, parent: Parent, tokens: PageTokens, page: int) -> None:
        """Let `page`, which somebody reads, be found."""
        key = (parent, tokens)
        self._pages[key], self._keys[page] = page, key

    def lay_aside(self, page: int) -> None:
        """Nobody reads `page` any more: it is kept as the last to be given up."""
        self._idle[page] = None

    def take_up(self, page: int) -> None:
        """Somebody reads `page`, which may have been laid aside."""
        self._idle.pop(page, None)

    def give_up(self) -> int:
        """Forget the page that was laid aside first, which no other page hangs on."""
        page, _ = self._idle.popitem(last=False)
        del self._pages[self._keys.pop(page)]
        return page
