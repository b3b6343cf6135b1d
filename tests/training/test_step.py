"""Acceptance is conditional: what happens behind a rejected slot does not count."""

import pytest
import torch

from dspark.training.step import conditional_acceptance


def test_by_hand() -> None:
    """Blocks (1, .5, 1), (.5, .25), (0, 1, 1): slot 1 weighs 1, .5, 0; slot 2 weighs .5, -, 0."""
    supervised = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]]).bool()
    accepted = torch.tensor([1, 0.5, 1, 0.5, 0.25, 0, 1, 1])
    assert conditional_acceptance(accepted, supervised).tolist() == pytest.approx([0.5, 0.625 / 1.5, 1.0])


def test_products_are_the_mean_survivals() -> None:
    accepted = torch.rand(50, 4, generator=torch.Generator().manual_seed(0))
    found = conditional_acceptance(accepted.flatten(), torch.ones(50, 4).bool())
    torch.testing.assert_close(found.cumprod(0), accepted.cumprod(1).mean(0))


def test_greedy_drafts_that_never_survive_say_nothing_about_later_slots() -> None:
    found = conditional_acceptance(torch.tensor([0.0, 1.0]), torch.ones(1, 2).bool())
    assert found[0] == 0
    assert found[1].isnan()
