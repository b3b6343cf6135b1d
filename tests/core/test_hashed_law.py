"""The known law of the fakes: a function of what it may look at, and of nothing else."""

import torch

from dspark.core.hashed_law import HashedLaw


def test_looks_back_as_far_as_its_order() -> None:
    law = HashedLaw(5, seed=1, order=2)
    assert torch.equal(law((1, 2, 3)), law([4, 2, 3]))
    assert not torch.equal(law((1, 2, 3)), law((1, 4, 3)))
    assert torch.equal(HashedLaw(5, 1, order=0)((1, 2)), HashedLaw(5, 1, order=0)(()))
    everything = HashedLaw(5, seed=1, order=None)
    assert not torch.equal(everything((0, 1, 2, 3)), everything((1, 1, 2, 3)))


def test_depends_on_seed_and_scale_and_masks_the_impossible() -> None:
    assert not torch.equal(HashedLaw(5, 1)((0,)), HashedLaw(5, 2)((0,)))
    torch.testing.assert_close(HashedLaw(5, 1, scale=3.0)((0,)), 3 * HashedLaw(5, 1)((0,)))
    masked = HashedLaw(5, 1, impossible=(0, 3), dtype=torch.float64)((1,))
    assert masked.isinf().nonzero().flatten().tolist() == [0, 3]
    assert masked.dtype == torch.float64
