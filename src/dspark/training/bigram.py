"""Start of the Markov head: the best rank-R fit to how much a token changes the odds of the next one.

The head adds W2 W1[x] to the logits, which is a table of log-ratios log p(y | x) / p(y) in low rank. Its rows are
sparse in training (each token is rarely the previous one), so counting beats waiting for gradients.
"""

from collections.abc import Iterable

import torch
from torch import Tensor


def log_ratio_table(pairs: Tensor, previous_ids: Tensor, next_ids: Tensor, vocab_size: int, shrinkage: float) -> Tensor:
    """log p(y | x) / p(y) for x in `previous_ids` and y in `next_ids`, from token `pairs` [N, 2].

    `shrinkage` pseudo-observations of p(y) pull rarely seen x to zero: (c(x, y) + s p(y)) / ((c(x) + s) p(y)).
    """
    row_of = torch.full((vocab_size,), -1).scatter(0, previous_ids, torch.arange(len(previous_ids)))
    column_of = torch.full((vocab_size,), -1).scatter(0, next_ids, torch.arange(len(next_ids)))
    rows, columns = row_of[pairs[:, 0]], column_of[pairs[:, 1]]
    known = (rows >= 0) & (columns >= 0)
    counts = torch.zeros(len(previous_ids) * len(next_ids))
    flat = rows[known] * len(next_ids) + columns[known]
    counts.index_add_(0, flat, torch.ones(len(flat)))
    counts = counts.view(len(previous_ids), len(next_ids))
    unigram = counts.sum(0) + 0.5
    unigram = unigram / unigram.sum()
    ratio = (counts + shrinkage * unigram) / ((counts.sum(1, keepdim=True) + shrinkage) * unigram)
    return ratio.log_()


def bigram_factors(
    sequences: Iterable[tuple[int, ...]],
    next_ids: Tensor,
    vocab_size: int,
    rank: int,
    shrinkage: float = 20.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """(W1 [vocab_size, rank], W2 [len(next_ids), rank]) with W1 W2^T near the bigrams' log-ratio table.

    Only the tokens of the (draft) vocabulary `next_ids` get a non-zero row in W1: they are nearly all that occur.
    """
    pairs = torch.cat([torch.tensor((s[:-1], s[1:])).T for s in sequences if len(s) > 1])
    table = log_ratio_table(pairs, next_ids, next_ids, vocab_size, shrinkage)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        u, s, v = torch.svd_lowrank(table, q=rank, niter=2)
    w1 = torch.zeros(vocab_size, rank)
    w1[next_ids] = u * s.sqrt()
    return w1, v * s.sqrt()
