"""What drawing and judging a round costs, beside the definition applied row by row.

    python benchmarks/sampling_cost.py
    python benchmarks/sampling_cost.py --requests 1 8 --rounds 9

Microseconds of processor time a request and round, median of the rounds, both ways in turn. The target's logits are
those of the embedded model along this repository's README, eight positions a request; a request drafts gamma tokens
from the 8,192 likeliest, by the target's logits and noise (standard deviation 0.7), and has all of them judged.
`equal` is the share of requests with the very same verdict: where a uniform meets a threshold within rounding, or a
token's mass the edge of a nucleus, they may differ.
"""

import argparse
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

import dspark
from dspark.core.draft_vocabulary import DraftVocabulary
from dspark.core.penalties import TokenHistory
from dspark.core.rejection import TokenRejection, verify, verify_greedy
from dspark.core.sampling import draw, probabilities
from dspark.core.streams import RandomStreams, Stream
from dspark.engine.batch_sampler import BatchRound
from dspark.engine.sampler import RequestSampler
from dspark.types import SamplingParams, Verdict

README = Path(__file__).parents[1] / "README.md"
V, V_DRAFT, GAMMA = 49152, 8192, 7
CASES = {
    "greedy": SamplingParams(),
    "T = 1": SamplingParams(temperature=1.0),
    "T = 0.2, top-p 0.9": SamplingParams(temperature=0.2, top_p=0.9),
    "T = 1, top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
    "T = 0.7, top-k 50": SamplingParams(temperature=0.7, top_k=50),
}


@dataclass(frozen=True)
class Problem:
    """Logits of B requests: `target` [B, GAMMA + 1, V], `draft` [GAMMA, B, V_DRAFT]."""

    target: Tensor
    draft: Tensor
    vocabulary: DraftVocabulary

    @classmethod
    def along(cls, text: str, most: int) -> "Problem":
        """Logits of the embedded target along `text`, for `most` requests."""
        target = dspark.load_target("smollm2-135m")
        token_ids = dspark.load_tokenizer("smollm2-135m").encode(text)[: most * (GAMMA + 1)]
        output = target.forward(torch.tensor(token_ids), target.new_cache(len(token_ids)))
        logits = target.logits(output.last_hidden)
        likely = logits.softmax(dim=-1).sum(dim=0).topk(V_DRAFT).indices.sort().values
        rows = logits.view(most, GAMMA + 1, V)
        draft = rows[:, :GAMMA, likely].transpose(0, 1)
        noise = 0.7 * torch.randn(draft.shape, generator=torch.Generator().manual_seed(0))
        return cls(rows, draft + noise, DraftVocabulary(V, likely))

    def first(self, requests: int) -> "Problem":
        """The problem of the first `requests`."""
        return Problem(self.target[:requests], self.draft[:, :requests].contiguous(), self.vocabulary)


def row_by_row(problem: Problem, params: list[SamplingParams]) -> list[Verdict]:
    """The definition: every law over the vocabulary, one row after another."""
    return [_one_request(problem, row, each) for row, each in enumerate(params)]


def _one_request(problem: Problem, row: int, params: SamplingParams) -> Verdict:
    target, streams = problem.target[row], RandomStreams(params.seed)
    if params.temperature == 0:
        drafts = [problem.vocabulary.token(int(problem.draft[slot, row].max(dim=-1).indices)) for slot in range(GAMMA)]
        return verify_greedy(target.max(dim=-1).indices.tolist(), drafts)
    drafts, q = [], []
    for slot, uniform in enumerate(streams.uniforms(Stream.DRAFT, 0, GAMMA)):
        q.append(probabilities(problem.vocabulary.scatter(problem.draft[slot, row]), params))
        drafts.append(draw(q[-1], uniform))
    p = probabilities(target, params)
    accept, recover = streams.uniforms(Stream.ACCEPT, 0, GAMMA), streams.uniforms(Stream.RECOVER, 0, GAMMA + 1)
    return verify(TokenRejection(), p, torch.stack(q), drafts, accept, recover)


def together(problem: Problem, params: list[SamplingParams]) -> list[Verdict]:
    """What the engine does."""
    samplers = [
        RequestSampler(each, problem.vocabulary, TokenHistory(), TokenRejection(), greedy_drafts=False)
        for each in params
    ]
    batch = BatchRound(samplers, [0] * len(params), [GAMMA] * len(params))
    for slot in range(GAMMA):
        batch.draft(problem.draft[slot])
    return batch.judge(problem.target.flatten(0, 1), [GAMMA] * len(params))


@dataclass
class Comparison:
    """Both ways in turn: seconds of each, and whether the verdicts were equal."""

    old: list[float]
    new: list[float]
    equal: list[bool]
    accepted: list[int]

    def add(self, problem: Problem, params: list[SamplingParams]) -> None:
        """One round."""
        start = time.process_time()
        expected = row_by_row(problem, params)
        between = time.process_time()
        found = together(problem, params)
        self.old.append(between - start)
        self.new.append(time.process_time() - between)
        self.equal.extend(a == b for a, b in zip(expected, found, strict=True))
        self.accepted.extend(verdict.accepted for verdict in found)

    def row(self, requests: int) -> str:
        """Columns; the first round warmed up."""
        old, new = (1e6 * statistics.median(each[1:]) / requests for each in (self.old, self.new))
        accepted, equal = statistics.mean(self.accepted), statistics.mean(self.equal)
        return f"{old:11.0f} {new:9.0f} {old / new:6.1f} {accepted:8.2f} {equal:6.1%}"


@torch.inference_mode()
def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds, after one that warms up")
    options = parser.parse_args()
    whole = Problem.along(README.read_text(encoding="utf-8"), max(options.requests))
    print(f"V {V}, V_draft {V_DRAFT}, gamma {GAMMA}, {torch.get_num_threads()} threads; microseconds a request")
    print(f"{'sampling':20} {'requests':>8} {'row by row':>11} {'together':>9} {'ratio':>6} {'accepted':>8} equal")
    for requests in options.requests:
        problem = whole.first(requests)
        for name, base in CASES.items():
            comparison = Comparison([], [], [], [])
            for number in range(options.rounds + 1):
                comparison.add(problem, [replace(base, seed=1000 * number + row) for row in range(requests)])
            print(f"{name:20} {requests:8} {comparison.row(requests)}", flush=True)


if __name__ == "__main__":
    main()
