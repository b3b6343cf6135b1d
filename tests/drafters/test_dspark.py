"""The whole drafter: heads on the backbone, shared tensors, pruning, confidence, and its block."""

from dataclasses import replace

import pytest
import torch

from dspark.drafters.backbone import DFlash
from dspark.drafters.dspark import DSpark
from dspark.drafters.registry import SharingTarget
from dspark.errors import ConfigError
from dspark.types import DraftBlock, Drafter
from tests.drafters.tiny import CONFIG, DFLASH, KINDS, drafter, shared, target, tensors, with_head

FEATURES = tensors(12, CONFIG.features_width, seed=5)
KEPT = torch.tensor([29, 3, 4, 17, 11])


def opened(module: DSpark, tokens: int = 6):
    cache = module.new_cache(16)
    module.extend(FEATURES[:tokens], cache)
    return cache


def walk(module: DSpark, drawn: list[int]):
    """Logits and confidences of a block whose previous tokens are `drawn`."""
    block = module.begin(drawn[0], opened(module))
    return zip(*(block.step(token) for token in drawn), strict=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("kept", [None, KEPT])
def test_block_steps_equal_the_teacher_forced_forward(kind, kept):
    module = drafter(replace(with_head(kind), draft_vocab_size=None if kept is None else len(kept)), kept)
    drawn = [2, 9, 9, 30]
    logits, confidences = walk(module, drawn)
    with torch.no_grad():
        tokens = torch.tensor([0] * 6 + drawn + [0, 0])
        hidden = module.training_states(FEATURES, tokens, torch.tensor([6]))
        previous = torch.tensor([drawn])
        torch.testing.assert_close(torch.stack(logits), module.draft_logits(hidden, previous)[0], atol=1e-5, rtol=1e-5)
        forced = module.confidence_logits(hidden, previous)[0]
    torch.testing.assert_close(torch.tensor(confidences), forced, atol=1e-5, rtol=1e-5)


def test_latents_and_bias_add_up_to_the_draft_logits():
    module, hidden = drafter(), tensors(2, 4, CONFIG.hidden_size)
    previous = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    joined = torch.cat((hidden, module.markov_latents(hidden, previous)), dim=-1)
    weights = torch.cat((module.head, module.markov_head.markov_w2.weight), dim=1)
    torch.testing.assert_close(joined @ weights.T, module.draft_logits(hidden, previous), atol=1e-5, rtol=1e-5)


def test_rank_zero_is_dflash():
    module = drafter(DFLASH)
    assert set(module.state_dict()) == set(DFlash(DFLASH, shared()[0]).state_dict())
    logits, confidences = walk(module, [2, 9, 9, 30])
    block = module.begin(2, opened(module))
    torch.testing.assert_close(torch.stack(logits), module.base_logits(block.hidden))
    assert set(confidences) == {None}
    with pytest.raises(ConfigError, match="no latents"):
        module.markov_latents(block.hidden[None], torch.zeros(1, 4, dtype=torch.long))


def test_the_pruned_vocabulary_is_the_full_one_restricted():
    full = drafter()
    pruned = DSpark(replace(CONFIG, draft_vocab_size=len(KEPT)), *shared(), KEPT)
    weights = full.state_dict()
    weights["markov_head.markov_w2.weight"] = weights["markov_head.markov_w2.weight"][KEPT]
    pruned.load_state_dict(weights)
    drawn = [2, 9, 30, 1]  # previous tokens stay target ids, kept or not
    (wide, confident), (narrow, also_confident) = walk(full, drawn), walk(pruned, drawn)
    torch.testing.assert_close(torch.stack(narrow), torch.stack(wide)[:, KEPT])
    assert confident == also_confident
    assert pruned.info.draft_token_ids is KEPT


@pytest.mark.parametrize("kind", KINDS)
def test_confidence_never_reads_the_token_about_to_be_drawn(kind):
    module = drafter(with_head(kind))
    reference = list(walk(module, [2, 9, 5, 1]))[1]
    for slot in range(1, 4):
        drawn = [2, 9, 5, 1]
        drawn[slot] = 13
        changed = [a != b for a, b in zip(list(walk(module, drawn))[1], reference, strict=True)]
        assert changed == [k == slot for k in range(4)]  # it reads the token before its slot, and that one only


def test_confidence_without_markov_reads_no_token():
    module = drafter(replace(CONFIG, confidence_head_with_markov=False))
    assert list(walk(module, [2, 9, 5, 1]))[1] == list(walk(module, [2, 13, 14, 15]))[1]


def test_a_shorter_block_is_drafted_as_trained():
    module = drafter()
    block = module.begin(2, opened(module), gamma=2)
    assert block.hidden.shape == (2, CONFIG.hidden_size)
    for gamma in (0, 5):
        with pytest.raises(ConfigError, match="outside"):
            module.begin(2, opened(module), gamma=gamma)


def test_shared_tensors_are_aliased_and_neither_trained_nor_saved():
    embedding, head = shared()
    module = DSpark(CONFIG, embedding, head)
    assert module.embedding.data_ptr() == embedding.data_ptr()
    assert module.head.data_ptr() == head.data_ptr()
    pointers = {p.data_ptr() for p in (*module.parameters(), *module.state_dict().values())}
    assert not pointers & {embedding.data_ptr(), head.data_ptr()}


def test_shared_tensors_of_another_size_are_refused():
    embedding, head = shared()
    with pytest.raises(ConfigError, match="embedding"):
        DSpark(CONFIG, embedding[:, :8], head)
    with pytest.raises(ConfigError, match="head"):
        DSpark(CONFIG, embedding, head[:9])
    with pytest.raises(ConfigError, match="draft token ids"):
        DSpark(replace(CONFIG, draft_vocab_size=4), embedding, head, KEPT)


def test_it_satisfies_the_protocols():
    module: Drafter = drafter()
    block: DraftBlock = module.begin(2, opened(drafter()))
    lender: SharingTarget = target()
    assert module.info.gamma == 4
    assert module.info.target_layer_ids == (1, 4, 6)
    assert block.step(2)[0].dtype == torch.float32
    assert lender.info.name == "tiny"


def test_initialisation_is_reproducible_and_leaves_norms_alone():
    first, again = (DSpark(CONFIG, *shared()) for _ in range(2))
    first.initialize(torch.Generator().manual_seed(4))
    again.initialize(torch.Generator().manual_seed(4))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
        if "norm" in name:
            assert torch.equal(tensor, torch.ones_like(tensor))
