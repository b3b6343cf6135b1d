"""`LLM` on the embedded model: many prompts at once give what each gives alone, whoever drafts."""

import asyncio

import pytest

from dspark import LLM, EngineOptions, SamplingParams, SchedulerConfig
from dspark.data.chat import Message
from dspark.drafters.shipped import shipped_drafter
from dspark.engine.models import open_models
from dspark.engine.reference import ReferenceLoop
from dspark.errors import ConfigError

QUESTIONS = ["Why is the sky blue?", "Write a haiku.", "Count to ten.", "What is 17 + 25?"]
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
OPTIONS = EngineOptions(4, prefill_chunk=24, scheduler=SchedulerConfig("fixed", park=False))


@pytest.fixture(scope="module")
def llm(model_wheel: str) -> LLM:
    return LLM(model_wheel, options=OPTIONS)


@pytest.mark.slow
def test_answers_are_those_of_plain_decoding_one_by_one(llm: LLM, model_wheel: str) -> None:
    conversations = [[Message("user", question)] for question in QUESTIONS]
    results = llm.chat(conversations, GREEDY)
    loop = ReferenceLoop(open_models(model_wheel, "none").target)
    for messages, result in zip(conversations, results, strict=True):
        plain = loop.generate(llm.codec.encode_chat(messages), GREEDY)
        assert result.token_ids == plain.token_ids
    assert sum(result.tally.metrics()["accepted_tokens"] for result in results) > 0  # type: ignore[misc]
    assert all(result.text for result in results)
    again = llm.chat(conversations, GREEDY, strategy="none")
    assert [result.text for result in again] == [result.text for result in results]
    assert all(result.tally.tau == 1 for result in again)


@pytest.mark.slow
def test_a_seed_gives_the_same_text_alone_in_a_batch_and_in_another_order(llm: LLM) -> None:
    params = [SamplingParams(temperature=1.0, seed=seed, max_tokens=8) for seed in range(4)]
    prompts = [llm.codec.encode(question) for question in QUESTIONS]
    together = llm.generate(prompts, params)
    alone = [llm.generate([prompt], [own])[0] for prompt, own in zip(prompts, params, strict=True)]
    turned = llm.generate(prompts[::-1], params[::-1])[::-1]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone] == [one.token_ids for one in turned]


@pytest.mark.slow
def test_several_drafters_stand_side_by_side(model_wheel: str) -> None:
    directory = shipped_drafter(model_wheel)
    assert directory is not None
    llm = LLM(model_wheel, {"one": directory, "two": directory}, OPTIONS)
    texts = {name: llm.generate(QUESTIONS[0], GREEDY, strategy=name)[0] for name in ("one", "two", "lookup", "none")}
    assert len({result.token_ids for result in texts.values()}) == 1
    assert texts["one"].tally.tau == texts["two"].tally.tau > 1


@pytest.mark.slow
def test_what_cannot_be_leaves_the_engine_as_it_was(llm: LLM) -> None:
    with pytest.raises(ConfigError, match="2 sampling parameters for 1 prompts"):
        llm.generate("One", [GREEDY, GREEDY])
    with pytest.raises(ConfigError):
        llm.generate(["One", []], GREEDY)
    while not llm.core.idle:
        llm.core.step()
    assert llm.core.memory.manager.used == 0

    def interrupted(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate(QUESTIONS, GREEDY, watch=interrupted)
    while not llm.core.idle:
        llm.core.step()
    assert llm.core.memory.manager.used == 0


@pytest.mark.slow
def test_a_server_streams_the_text_that_a_list_of_prompts_gets(llm: LLM) -> None:
    async def serve() -> list[str]:
        async with llm.serve() as engine:
            return [event.text async for event in engine.generate(QUESTIONS[0], GREEDY)]

    pieces = asyncio.run(serve())
    assert "".join(pieces) == llm.generate(QUESTIONS[0], GREEDY)[0].text != ""


@pytest.mark.slow
def test_prompts_and_parameters_of_another_type_are_refused(llm: LLM) -> None:
    for prompts, params, told in (
        ([1, 2, "abc"], None, "'abc' of type str stands among token ids"),
        ([5, [1, 2]], None, "stands among token ids"),
        (None, None, "the prompt is None"),
        ("One", {"max_tokens": 3}, "of type dict; expected SamplingParams"),
        ("One", [None], "the parameters are None"),
    ):
        with pytest.raises(ConfigError, match=told):
            llm.generate(prompts, params)  # type: ignore[arg-type]
    assert llm.core.idle
