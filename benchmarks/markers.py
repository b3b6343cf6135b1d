"""Tables that scripts keep in documents, between two comments that readers do not see."""

from pathlib import Path


def rewrite(path: Path, name: str, table: str) -> None:
    """Put `table` where the file at `path` keeps the one called `name`."""
    path.write_text(replaced(path.read_text(encoding="utf-8"), name, table), encoding="utf-8")


def replaced(text: str, name: str, table: str) -> str:
    """`text` with everything between the two markers of `name` replaced; ValueError where it has no such pair."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        raise ValueError(f"the document has no {begin} ... {end}, between which the table is kept; add both lines")
    return f"{before}{begin}\n{table}\n{end}{after}"
