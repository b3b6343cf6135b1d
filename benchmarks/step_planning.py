"""What planning a step and keeping its pages costs, without models: microseconds of one core, by running requests.

Every request decodes after a prompt of `--prompt` tokens and commits three tokens a round, as drafting rounds do.

    python -m benchmarks.step_planning --steps 300
"""

import argparse
import json
import time
from dataclasses import dataclass
from statistics import median

from dspark.engine.engine_options import EngineOptions
from dspark.engine.lease import Lease
from dspark.engine.page_manager import PageManager
from dspark.engine.step_plan import plan_step
from dspark.engine.waiting import WaitingQueue
from dspark.nn.pages import pages_for

KEPT = 3
DRAFTS = 7


@dataclass(slots=True)
class Job:
    """A request of which only lengths matter; its tokens are its number, so that nothing is shared."""

    key: int
    goal: int
    lease: Lease | None = None
    drafts: int = DRAFTS

    @property
    def computed(self) -> int:
        """Positions that a cache would hold."""
        assert self.lease is not None
        return self.lease.length


class Memory:
    """Pages for jobs."""

    def __init__(self, pages: int) -> None:
        self.manager = PageManager(pages)

    def seat(self, job: Job, spare: int) -> bool:
        """Pages for the prompt and a round."""
        job.lease = self.manager.open([job.key] * job.goal)
        return self.manager.reserve(job.lease, job.goal + 1 + job.drafts, spare)

    def reserve(self, job: Job, positions: int) -> bool:
        """Pages below `positions`."""
        assert job.lease is not None
        return self.manager.reserve(job.lease, positions)

    def unseat(self, job: Job) -> None:
        """All pages back."""
        assert job.lease is not None
        self.manager.close(job.lease)


def microseconds(requests: int, prompt: int, steps: int) -> float:
    """Median over `steps` of planning one and committing what it kept."""
    memory = Memory(requests * pages_for(prompt + KEPT * (steps + 1) + DRAFTS + 1) + requests)
    waiting: WaitingQueue[Job] = WaitingQueue()
    jobs = [Job(key, prompt) for key in range(requests)]
    for job in jobs:
        assert memory.seat(job, 0)
        assert job.lease is not None
        memory.manager.commit(job.lease, [job.key] * prompt)
    options, taken = EngineOptions(max_requests=requests, max_batched_tokens=8 * requests), []
    for _ in range(steps):
        start = time.perf_counter()
        for job in plan_step(jobs, waiting, options, memory).decodes:
            assert job.lease is not None
            memory.manager.commit(job.lease, [job.key] * KEPT)
            job.goal += KEPT
        taken.append(time.perf_counter() - start)
    return 1e6 * median(taken)


def main() -> None:
    """Print a table as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--prompt", type=int, default=1024)
    args = parser.parse_args()
    rows = {requests: round(microseconds(requests, args.prompt, args.steps), 1) for requests in (1, 8, 32, 64, 256)}
    print(json.dumps({"prompt": args.prompt, "steps": args.steps, "microseconds": rows}))


if __name__ == "__main__":
    main()
