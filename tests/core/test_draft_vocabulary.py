"""Draft ids and target ids."""

import torch

from dspark.core.draft_vocabulary import DraftVocabulary

INF = torch.inf


def test_pruned_vocabulary_in_any_order() -> None:
    vocabulary = DraftVocabulary(5, torch.tensor([4, 0, 2]))
    assert [vocabulary.token(i) for i in range(3)] == [4, 0, 2]
    scattered = vocabulary.scatter(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert scattered.tolist() == [2.0, -INF, 3.0, -INF, 1.0]
    assert scattered.dtype == torch.float64


def test_full_vocabulary_is_left_alone() -> None:
    logits = torch.ones(3)
    assert DraftVocabulary(3).scatter(logits) is logits
    assert DraftVocabulary(3).token(2) == 2
