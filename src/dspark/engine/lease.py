"""What one request holds of the page memory."""

from dspark.nn.pages import PageTable


class Lease:
    """The pages of one request: `table` lists them, the first `shared` positions lie in pages that others may read.

    `hit` positions were computed by others before this request began, `length` are computed by now, `hit` included.
    Both counts are of target and drafter alike. A request writes from `shared` on, never before.
    """

    __slots__ = ("hit", "length", "parent", "pending", "salt", "shared", "table")

    def __init__(self, table: PageTable, salt: str) -> None:
        self.table, self.salt = table, salt
        self.hit = self.length = self.shared = 0
        self.parent: int | str = salt
        """What the next full page hangs on: the page before it, or the salt."""
        self.pending: list[int] = []
        """Tokens of computed positions behind the last full page."""

    def check_write(self, position: int) -> None:
        """Refuse to write at `position`, or to roll back to it, inside a page that others may read.

        Raises:
            AssertionError: a fault of the engine, never of the user.
        """
        if position < self.shared:
            raise AssertionError(f"position {position} lies in a shared page: the first {self.shared} are only read")
