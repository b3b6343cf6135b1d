"""The public names exist, and nothing else is promised."""

import pytest

import dspark


def test_every_public_name_resolves() -> None:
    assert all(callable(getattr(dspark, name)) for name in dspark.__all__)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dspark.nonsense  # type: ignore[attr-defined]
