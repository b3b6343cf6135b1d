"""Answers jobs with vLLM, in process, under an interpreter that has it: JSON lines on stdin, one line each on stdout.

The first line says how to open the model: {"model", "users", "max_len"}. Then each job is
{"prompts": [[token ids], ...], "max_tokens", "users", "natural"}, and is answered {"seconds", "answers"}: `users`
requests run at a time, another is added when one ends, prompts are read within the time. Answers have exactly
`max_tokens` tokens, unless `natural` lets them end where the model ends them. {"forget": true} empties the prefix
cache. Started by benchmarks/serving_peers.py.

vLLM keeps its defaults: compiled, prefixes cached, prompts in chunks. Compiling takes minutes the first time; what
came of it is kept in ~/.cache/vllm (VLLM_CACHE_ROOT), for exactly one model, "users" and "max_len". It runs in this
one process; VLLM_ENABLE_V1_MULTIPROCESSING=1 gives scheduler and model a process each, which takes a third processor to
pay. What vLLM would preload into such processes is preloaded here, by starting this program anew: the OpenMP that comes
with Torch, and its allocator if it brings one.
"""

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

STARTED = "VLLM_WORKER_STARTED"


def main() -> None:
    """Read jobs until stdin ends."""
    if STARTED not in os.environ:
        start_anew()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is no answer
    opening = json.loads(sys.stdin.readline())
    llm = opened(opening)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(forget(llm) if job.get("forget") else answer(llm.llm_engine, job)), file=answers, flush=True)


def start_anew() -> None:
    """This program again, with the libraries that vLLM wants loaded first, in the same process."""
    libraries = [*found("vllm", "libs/libtcmalloc*.so*"), *found("torch", "lib/libgomp*.so*")]
    preloaded = os.environ.get("LD_PRELOAD")
    os.environ[STARTED] = "1"
    os.environ["LD_PRELOAD"] = ":".join([*([preloaded] if preloaded else []), *libraries])
    os.execv(sys.executable, [sys.executable, *sys.argv])


def found(package: str, pattern: str) -> Iterator[str]:
    """Files of an installed package, without importing it; the first match only."""
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from map(str, sorted(Path(folder).glob(pattern))[:1])


def opened(opening: Mapping[str, Any]) -> Any:
    """vLLM on the model, with settings of the environment before ours."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", os.environ.get("WORKER_PROCESSORS", "nobind"))
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    from vllm import LLM

    return LLM(
        model=opening["model"],
        dtype="bfloat16",
        max_model_len=opening["max_len"],
        max_num_seqs=opening["users"],
    )


def forget(llm: Any) -> dict[str, Any]:
    """Empty the prefix cache."""
    return {"forgotten": llm.llm_engine.reset_prefix_cache()}


def answer(engine: Any, job: Mapping[str, Any]) -> dict[str, Any]:
    """All prompts of a job, `users` of them at a time."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        temperature=0.0,
        max_tokens=job["max_tokens"],
        ignore_eos=not job["natural"],
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,  # as vLLM's own generate asks
    )
    prompts: Sequence[Sequence[int]] = job["prompts"]
    answers: list[Sequence[int]] = [()] * len(prompts)
    added = running = 0
    started = time.perf_counter()
    while added < len(prompts) or running:
        while added < len(prompts) and running < job["users"]:
            engine.add_request(str(added), {"prompt_token_ids": prompts[added]}, params)
            added, running = added + 1, running + 1
        for output in engine.step():
            if output.finished:
                answers[int(output.request_id)] = output.outputs[0].token_ids
                running -= 1
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "answers": [list(tokens) for tokens in answers]}


if __name__ == "__main__":
    main()
