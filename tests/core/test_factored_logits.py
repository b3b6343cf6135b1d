"""Chunked readings of logits against the logits themselves."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dspark.core.factored_logits import FactoredLogits, compare_laws, favourites, likeliest, log_probs_at
from dspark.errors import ConfigError

N, V, D, R = 6, 11, 4, 3


def factors(seed: int, rank: int = R, dtype: torch.dtype = torch.float64, vocabulary: int = V) -> FactoredLogits:
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype) for shape in
            ((N, D), (vocabulary, D), (N, rank), (vocabulary, rank))]  # fmt: skip
    return FactoredLogits(*draw) if rank else FactoredLogits(*draw[:2])


def whole(logits: FactoredLogits) -> Tensor:
    return logits.columns(0, logits.vocabulary)


@pytest.mark.parametrize("cap", [None, 1.5])
@pytest.mark.parametrize("rank", [0, R])
def test_gradients_of_every_factor_are_those_of_finite_differences(rank: int, cap: float | None) -> None:
    draft, target = factors(0, rank), factors(1, 0)
    ids = torch.tensor([[0, 10], [3, 3], [4, 5], [9, 1], [7, 6], [10, 0]])  # both ends of chunks, and one token twice
    inputs = [f.requires_grad_() for f in (draft.hidden, draft.head, draft.latents, draft.w2) if f is not None]

    def logits(*factors: Tensor) -> FactoredLogits:
        return FactoredLogits(*factors, soft_cap=cap)

    assert torch.autograd.gradcheck(lambda *f: compare_laws(logits(*f), target, ids, 4), inputs)
    assert torch.autograd.gradcheck(lambda *f: log_probs_at(logits(*f), ids, 4), inputs)


def test_the_cap_is_on_the_head_alone() -> None:
    draft = factors(0)
    capped = replace(draft, soft_cap=1.5)
    inner = 1.5 * torch.tanh(draft.hidden @ draft.head.T / 1.5)
    torch.testing.assert_close(capped.dense(), inner + draft.latents @ draft.w2.T)
    torch.testing.assert_close(capped.columns(3, 9), capped.dense()[:, 3:9])
    torch.testing.assert_close(capped.to(torch.float32).dense(), capped.dense().float())
    assert not torch.allclose(capped.dense(), draft.dense())


@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
def test_laws_are_those_of_the_whole_logits(chunk: int) -> None:
    draft, target = factors(0), factors(1)
    ids = torch.arange(N)[:, None]
    log_probs, distance = compare_laws(draft, target, ids, chunk)
    p_d, p_t = whole(draft).softmax(-1), whole(target).softmax(-1)
    torch.testing.assert_close(log_probs, p_d.log().gather(-1, ids))
    torch.testing.assert_close(distance, (p_d - p_t).abs().sum(-1))


@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
@pytest.mark.parametrize("count", [1, 5, V])
def test_the_likeliest_tokens_are_those_of_the_whole_logits(chunk: int, count: int) -> None:
    logits = factors(0, dtype=torch.float32)
    assert likeliest(logits, count, chunk).tolist() == whole(logits).topk(count).indices.tolist()


def test_logits_too_large_to_exponentiate_are_no_problem() -> None:
    draft = factors(0)
    loud = FactoredLogits(1e4 * draft.hidden, draft.head)
    log_probs = log_probs_at(loud, favourites(loud, 4)[:, None], 4)
    torch.testing.assert_close(log_probs, torch.zeros_like(log_probs))


def test_only_factors_that_need_a_gradient_get_one() -> None:
    draft, target = factors(0), factors(1)
    draft.hidden.requires_grad_()
    target.head.requires_grad_()
    compare_laws(draft, target, torch.zeros(N, 1, dtype=torch.long), 4)[1].sum().backward()
    assert draft.hidden.grad is not None
    assert draft.head.grad is None
    assert target.head.grad is None


def test_bfloat16_factors_are_summed_in_float32() -> None:
    """A thousand chunks of one token: sums in bfloat16 would lose what is small beside them."""
    draft = factors(0, dtype=torch.bfloat16, vocabulary=1000)
    exact = draft.hidden.double().requires_grad_()
    draft.hidden.requires_grad_()
    ids = torch.arange(N)[:, None]
    log_probs = log_probs_at(draft, ids, 1)
    logits = exact @ draft.head.double().T + draft.latents.double() @ draft.w2.double().T
    expected = logits.log_softmax(-1).gather(-1, ids)
    log_probs.sum().backward()
    expected.sum().backward()
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(draft.hidden.grad.double(), exact.grad, atol=0.03, rtol=0.02)


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_favourites_are_the_first_of_the_largest(chunk: int) -> None:
    logits = FactoredLogits(torch.eye(2), torch.tensor([[0.0, 1], [2, 1], [1, 1], [2, 0], [2, -1]]))
    assert favourites(logits, chunk).tolist() == [1, 0]
    assert favourites(factors(0), chunk).tolist() == whole(factors(0)).argmax(-1).tolist()


class Largest(TorchDispatchMode):
    """Remembers the largest number of elements that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_nothing_as_large_as_the_logits_is_ever_allocated() -> None:
    rows, vocabulary, chunk = 64, 1000, 50
    generator = torch.Generator().manual_seed(0)
    draft, target = (
        FactoredLogits(
            torch.randn(rows, 8, generator=generator).requires_grad_(), torch.randn(vocabulary, 8, generator=generator),
            torch.randn(rows, 4, generator=generator).requires_grad_(),
            torch.randn(vocabulary, 4, generator=generator).requires_grad_(),
        )
        for _ in range(2)
    )  # fmt: skip
    ids = torch.randint(0, vocabulary, (rows, 16), generator=generator)
    with Largest() as largest:
        log_probs, distance = compare_laws(draft, target, ids, chunk)
        (log_probs.sum() + distance.sum()).backward()
        favourites(draft, chunk)
    assert largest.elements <= max(rows * chunk, vocabulary * 8)  # a chunk of logits, or the head itself


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FactoredLogits(torch.zeros(2, 3), torch.zeros(5, 4)), r"hidden is \[2, 3\] and head \[5, 4\]"),
        (lambda: FactoredLogits(torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(2, 1)), "both of them or neither"),
        (
            lambda: FactoredLogits(torch.zeros(2, 3), torch.zeros(5, 3), torch.zeros(2, 1), torch.zeros(4, 1)),
            "rows must be as many",
        ),
        (
            lambda: compare_laws(factors(0), factors(0, vocabulary=12), torch.zeros(N, 1).long(), 4),
            "draft has 11 tokens and the target 12",
        ),
        (
            lambda: compare_laws(
                factors(0), FactoredLogits(torch.zeros(2, D), torch.zeros(V, D)), torch.zeros(N, 1).long(), 4
            ),
            "draft has 6 rows and the target 2",
        ),
        (lambda: log_probs_at(factors(0), torch.zeros(N, 1).long(), 0), "at least 1"),
        (lambda: favourites(factors(0), 0), "at least 1"),
    ],
)
def test_what_cannot_be_is_refused(build, message) -> None:
    with pytest.raises(ConfigError, match=message):
        build()
