"""Penalties: who counts (prompt, output), by how much, and row by row inside a block."""

import pytest
import torch

from dspark.core.penalties import TokenHistory, penalised, penalised_block
from dspark.types import SamplingParams

ALL = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)


def test_each_penalty_by_hand() -> None:
    logits = torch.tensor([4.0, -4.0, 4.0, -4.0, 4.0], dtype=torch.float64)
    history = TokenHistory(prompt=[0, 1, 1], output=[2, 3, 3])
    # Tokens 0 and 1 are in the prompt: repetition only, however often. 2 once, 3 twice in the output. 4 never.
    assert penalised(logits, ALL, history).tolist() == [2.0, -8.0, 2.0 - 0.75, -8.0 - 1.0, 4.0]
    assert logits.tolist() == [4.0, -4.0, 4.0, -4.0, 4.0]


def test_no_penalty_costs_nothing() -> None:
    logits = torch.ones(2, 3)
    assert penalised(logits[0], SamplingParams(), TokenHistory([0], [1])).data_ptr() == logits.data_ptr()
    assert penalised_block(logits, SamplingParams(), TokenHistory([0], [1]), [2]) is logits


def test_masked_tokens_stay_masked() -> None:
    logits = torch.tensor([-torch.inf, 1.0])
    assert penalised(logits, ALL, TokenHistory([0, 1], [0])).tolist() == [-torch.inf, 0.5]


def test_row_j_of_a_block_sees_the_drafts_before_j() -> None:
    history = TokenHistory(prompt=[3], output=[0])
    block = penalised_block(torch.ones(3, 4), ALL, history, [1, 1])
    for row, drafts in zip(block, ([], [1], [1, 1]), strict=True):
        assert torch.equal(row, penalised(torch.ones(4), ALL, TokenHistory([3], [0, *drafts])))
    assert block[:, 1].tolist() == [1.0, 0.5 - 0.75, 0.5 - 1.0]


def test_history_grows_only_where_asked() -> None:
    history = TokenHistory(prompt=[5], output=[1])
    branch = history.followed_by([2, 2])
    history.append([3])
    assert (history.seen(), dict(history.output_counts())) == ([1, 3, 5], {1: 1, 3: 1})
    assert (branch.seen(), dict(branch.output_counts())) == ([1, 2, 5], {1: 1, 2: 2})


def test_repetition_agrees_with_transformers() -> None:
    logits_process = pytest.importorskip("transformers.generation.logits_process", reason="parity with transformers")
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[3, 3, 7, 49, 0]])
    theirs = logits_process.RepetitionPenaltyLogitsProcessor(1.3)(ids, logits.clone())
    ours = penalised(logits[0], SamplingParams(repetition_penalty=1.3), TokenHistory([3, 3, 7], [49, 0]))
    torch.testing.assert_close(ours, theirs[0])
