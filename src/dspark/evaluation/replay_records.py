"""Records for calibration from replayed rounds: no target forward per round, and exact chances instead of coins.

Given the text, the chance that drafts 1 ... k survive is the product of min(1, q / p) over the text's tokens, and a
conditional label weighed with it is exact. Only what follows a rejected draft differs from the loop: confidences of
later slots read the text's token there, the loop's read the draft. Hence fit on such records at will, but report on
the loop's. Shapes: A anchors, G slots (gamma), N rounds.
"""

import numpy as np
import torch
from torch import Tensor

from dspark.calibration.records import RoundRecords, concatenate
from dspark.calibration.signals import RoundHistory, peak_log_odds
from dspark.core.params import is_greedy
from dspark.drafters.dspark import DSpark
from dspark.engine.round_recorder import RequestLabel
from dspark.engine.stops import Output
from dspark.evaluation.replay import CHUNK, Accept, Replay, acceptance_table, drawn
from dspark.evaluation.target_text import Question, TargetText
from dspark.types import as_ids


def replay_records(replay: Replay, question: Question, label: RequestLabel) -> RoundRecords:
    """The rounds that the loop would make of a text, as often as `replay` simulates them (once at temperature 0)."""
    text = replay.store.text(question)
    output, _ = text.output(replay.store.info)
    features = replay.store.features(text, replay.drafter.info.target_layer_ids)
    anchors = len(output.token_ids) - 1
    acceptance = acceptance_table(replay.drafter, text, features, anchors, replay.gamma).numpy()
    signals = signal_table(replay.drafter, text, features, anchors, replay.gamma)
    simulations = 1 if is_greedy(question.params) else replay.simulations
    accepts = (drawn(question.params.seed, index) for index in range(simulations))
    return concatenate([_rounds(acceptance, *signals, output, label, accept) for accept in accepts])


@torch.inference_mode()
def signal_table(
    drafter: DSpark, text: TargetText, features: Tensor, anchors: int, gamma: int
) -> tuple[np.ndarray, np.ndarray]:
    """(confidence logits, peaks), each [A, G], of the blocks at the first `anchors` text tokens; NaN without a head."""
    confidence, peaks = np.full((anchors, gamma), np.nan, np.float32), np.zeros((anchors, gamma), np.float32)
    if anchors == 0:
        return confidence, peaks
    first = len(text.question.prompt_ids)
    tokens = as_ids((*text.question.prompt_ids, *text.token_ids))
    places = (first + torch.arange(anchors)[:, None] + torch.arange(gamma)).clamp(max=len(tokens) - 1)
    hidden = drafter.training_states(features, tokens[: len(features)], places[:, 0], gamma=gamma)
    logits = drafter.confidence_logits(hidden, tokens[places])
    if logits is not None:
        confidence = logits.float().numpy()
    for start in range(0, anchors, CHUNK):
        rows = slice(start, start + CHUNK)
        peaks[rows] = peak_log_odds(drafter.draft_logits(hidden[rows], tokens[places[rows]]).float().numpy())
    return confidence, peaks


def _rounds(
    acceptance: np.ndarray,
    confidence: np.ndarray,
    peak: np.ndarray,
    output: Output,
    label: RequestLabel,
    accept: Accept,
) -> RoundRecords:
    """Walk along the text as `replay_rounds` does, keeping what was known at each anchor."""
    last, gamma = len(output.token_ids) - 1, acceptance.shape[1]
    history, anchor, rows = RoundHistory(), 0, []
    while anchor < last:
        judged = min(gamma, last - anchor) if output.ended_by_token else gamma
        chances = acceptance[anchor, :judged].tolist()
        accepted = next((k for k, chance in enumerate(chances) if not accept(chance)), judged)
        rows.append((anchor, history.value, accepted, judged))
        history.update(accepted)
        anchor += accepted + 1
    places = np.array([row[0] for row in rows], dtype=np.int64)
    count = len(rows)
    return RoundRecords(
        confidence=confidence[places],
        peak=peak[places],
        history=np.array([row[1] for row in rows], dtype=np.float32),
        accepted=np.array([row[2] for row in rows], dtype=np.int64),
        judged=np.array([row[3] for row in rows], dtype=np.int64),
        position=places + 1,
        request=np.full(count, label.request, dtype=np.uint64),
        domain=np.full(count, label.domain),
        draft_mode=np.full(count, label.draft_mode, dtype=np.uint8),
        temperature=np.full(count, label.temperature, dtype=np.float32),
        survival=np.cumprod(acceptance[places], axis=1),
    )
