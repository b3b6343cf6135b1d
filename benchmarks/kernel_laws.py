"""How far each kernel's next-token laws are from float32 arithmetic on the same bfloat16 weights.

    python benchmarks/kernel_laws.py ANSWERS.jsonl[.gz] [--answers 12] [--kernels compiled-bf16,onednn-bf16]

ANSWERS as `dspark train` reads them. Prints one JSON object: by kernel the mean total variation, the share of positions
with the same favourite, and the largest difference of a logit.
"""

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from dspark.data.answers import Answer, read_answers
from dspark.targets.registry import load_target
from dspark.types import Target

TARGET, REFERENCE, LONGEST = "smollm2-135m", "compiled", 400


@torch.inference_mode()
def response_logits(target: Target, answer: Answer) -> Tensor:
    """Logits [n, V] at the answer's positions."""
    ids = torch.tensor(answer.token_ids)
    states = target.forward(ids, target.new_cache(len(ids))).last_hidden
    return target.logits(states[len(answer.prompt_ids) :])


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("answers_file", type=Path, metavar="ANSWERS")
    parser.add_argument("--answers", type=int, default=12)
    parser.add_argument("--kernels", default="compiled-bf16,onednn-bf16,fp16")
    options = parser.parse_args()
    answers = read_answers(options.answers_file, max_length=LONGEST)[: options.answers]
    reference = load_target(TARGET, kernel=REFERENCE)
    table = {}
    for name in options.kernels.split(","):
        target, distances, agreements, largest = load_target(TARGET, kernel=name), [], [], 0.0
        for answer in answers:
            exact, found = response_logits(reference, answer), response_logits(target, answer)
            distances.append((exact.softmax(-1) - found.softmax(-1)).abs().sum(-1).mean() / 2)
            agreements.append((exact.argmax(-1) == found.argmax(-1)).float().mean())
            largest = max(largest, float((exact - found).abs().max()))
        means = [float(torch.stack(values).mean()) for values in (distances, agreements)]
        table[name] = {"total_variation": means[0], "same_favourite": means[1], "largest_difference": largest}
    print(json.dumps({"answers": len(answers), "reference": REFERENCE, "kernels": table}))


if __name__ == "__main__":
    main()
