"""A nested setting as rows of a table: one value a line, names indented below their section."""

from collections.abc import Iterator, Mapping, Sequence

INDENT = "  "


def tree_rows(tree: Mapping[str, object], depth: int = 0) -> Iterator[tuple[str, str]]:
    """(name, value) for every entry of `tree`; a section has an empty value and its entries follow, indented."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield INDENT * depth + name, ""
            yield from tree_rows(value, depth + 1)
        else:
            yield INDENT * depth + name, value_text(value)


def value_text(value: object) -> str:
    """A value for people: a list's items on one line, but mappings in it on a line each; a dash for nothing."""
    if value is None or value in ((), []):
        return "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {value_text(item)}" for name, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        between = "\n" if any(isinstance(item, Mapping) for item in value) else " "
        return between.join(value_text(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
