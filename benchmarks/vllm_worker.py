"""Answers jobs with vLLM, in process, under an interpreter that has it: JSON lines on stdin, one line each on stdout.

The first line says how to open the model: {"model", "users", "max_len", "threads"}. Then each job is
{"prompts": [[token ids], ...], "max_tokens"}, and is answered {"seconds", "tokens"}: all prompts are handed over at
once, `users` of them run at a time, prompts are read within the time. Started by benchmarks/serving_peers.py.
"""

import json
import os
import sys
import time


def main() -> None:
    """Read jobs until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is no answer
    opening = json.loads(sys.stdin.readline())
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{opening['threads'] - 1}")

    from vllm import LLM, SamplingParams

    llm = LLM(
        model=opening["model"],
        dtype="bfloat16",
        max_model_len=opening["max_len"],
        max_num_seqs=opening["users"],
        skip_tokenizer_init=True,
    )
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        params = SamplingParams(temperature=0.0, max_tokens=job["max_tokens"], ignore_eos=True, detokenize=False)
        prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
        started = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        print(json.dumps({"seconds": seconds, "tokens": tokens}), file=answers, flush=True)


if __name__ == "__main__":
    main()
