"""How often prompt lookup copies, and how often a copy is right, along texts that the target wrote by itself.

At temperatures above 0 a copy passes with the probability that the target gives it, so the share of copies that equal
the target's own sampled text is what a loop accepts.

    python benchmarks/lookup_acceptance.py PROMPTS --temperature 0
"""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dspark.data.chat import user_turn
from dspark.drafters.prompt_lookup import LookupIndex, PromptLookup
from dspark.engine.models import open_models
from dspark.evaluation.prompts import read_prompt_sets
from dspark.evaluation.target_text import Question, TargetText, TextWriter
from dspark.evaluation.text_store import TextStore
from dspark.targets.native import NativeTarget
from dspark.types import SamplingParams

TARGET = "smollm2-135m"
OVERHANG = 8
"""As in tau_table.py, so that both read the same texts."""


def main() -> None:
    """Print one JSON object per length of the match."""
    args = arguments()
    models = open_models(TARGET, "none")
    assert isinstance(models.target, NativeTarget), "the embedded target is native"
    store = TextStore(args.texts, TextWriter(models.target, (), OVERHANG))
    params = SamplingParams(temperature=args.temperature, max_tokens=args.max_tokens)
    texts = [
        store.text(Question(tuple(models.codec.encode_chat(user_turn(prompt.turns[0]))), replace(params, seed=index)))
        for one in read_prompt_sets(args.sets, args.prompts)
        for index, prompt in enumerate(one.prompts)
    ]
    for match in args.match:
        print(json.dumps(acceptance(texts, PromptLookup(args.drafts, match))))


def acceptance(texts: Sequence[TargetText], lookup: PromptLookup) -> dict[str, object]:
    """Copies per token of text, and the share of right ones by position if those before were right."""
    judged, right, copies = Counter[int](), Counter[int](), 0
    for text in texts:
        tokens = text.token_ids[: text.question.params.max_tokens]
        index, place = LookupIndex(lookup, (*text.question.prompt_ids, *tokens[:1])), 1
        while place < len(tokens):
            drafts = index.propose(len(tokens) - place)
            copies += bool(drafts)
            accepted = next((k for k, draft in enumerate(drafts) if draft != tokens[place + k]), len(drafts))
            right.update(range(accepted))
            judged.update(range(min(accepted + 1, len(drafts))))
            index.append(tokens[place : place + accepted + 1])
            place += accepted + 1
    length = sum(min(len(text.token_ids), text.question.params.max_tokens) for text in texts)
    shares = [round(right[k] / judged[k], 3) for k in sorted(judged)]
    return {"match": lookup.match, "copies_per_token": round(copies / length, 3), "acceptance": shares}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path, help="JSONL prompt sets, or a directory of them")
    parser.add_argument(
        "--texts", type=Path, default=Path("runs/texts"), help="texts of the target, kept for next time"
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--prompts", type=int, default=24, help="prompts of each set")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--drafts", type=int, default=5, help="tokens copied at a time")
    parser.add_argument("--match", type=int, nargs="+", default=[2, 3, 4], help="tokens that must repeat")
    return parser.parse_args()


if __name__ == "__main__":
    main()
