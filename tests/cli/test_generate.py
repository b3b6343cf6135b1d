"""`dspark generate` on a small model, good input and bad."""

import io
import json
import sys

import pytest

from dspark.drafters.prompt_lookup import PromptLookup
from dspark.engine.draft_limit import NO_PROFILE, NOISY_PROFILE, DraftLimit
from tests.cli.conftest import write_target

QUESTION = "Say something."
KEYS = {"tau", "tokens_per_target_forward", "rounds", "drafted_tokens", "verified_tokens", "accepted_tokens"} | {
    "acceptance_by_position",
    "conditional_acceptance_by_position",
    "output_tokens",
    "tokens_per_second",
    "prefill_seconds",
    "draft_seconds",
    "verify_seconds",
    "schedule_seconds",
}
DRAFT = ("--max-draft-tokens", 3)  # so small a target would not be worth drafting for


def test_json_has_the_agreed_shape_and_stdout_nothing_else(run, world):
    outcome = run("generate", QUESTION, "-t", world / "target", "-d", world / "drafter", "-n", 12, *DRAFT, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    answer = outcome.json
    assert set(answer) >= {"text", "token_ids", "finish_reason", "metrics"}
    assert set(answer["metrics"]) >= KEYS
    assert answer["metrics"]["output_tokens"] == len(answer["token_ids"]) <= 12


def test_the_text_streams_to_stdout_and_the_summary_to_stderr(run, world):
    arguments = ("generate", QUESTION, "-t", world / "target", "-d", world / "drafter", "-n", 12, *DRAFT)
    plain, json = run(*arguments), run(*arguments, "--json").json
    assert plain.status == 0
    assert plain.out == json["text"] + "\n"
    assert "tokens/s" in plain.err
    assert "tau" in plain.err


def test_greedy_text_does_not_depend_on_the_drafter(run, world):
    arguments = ("generate", QUESTION, "-t", world / "target", "-n", 40, "--dtype", "fp32", "--ignore-eos", "--json")
    with_drafter = run(*arguments, "-d", world / "drafter", *DRAFT).json
    without = run(*arguments, "-d", "none").json
    assert with_drafter["token_ids"] == without["token_ids"]
    assert len(without["token_ids"]) == 40
    assert without["metrics"]["drafted_tokens"] == 0


def test_a_seed_fixes_a_sampled_answer_and_another_changes_it(run, world):
    arguments = ("generate", QUESTION, "-t", world / "target", "-T", 1, "-n", 24, "--ignore-eos", "--json")
    first, again, other = (run(*arguments, "--seed", seed).json["token_ids"] for seed in (1, 1, 2))
    assert first == again != other


def test_without_a_seed_every_sampled_answer_is_new_and_names_its_seed(run, world):
    arguments = ("generate", QUESTION, "-t", world / "target", "-T", 9, "-n", 24, "--ignore-eos", "--json")
    first, second = (run(*arguments).json for _ in range(2))
    assert first["token_ids"] != second["token_ids"]
    assert run(*arguments, "--seed", first["seed"]).json["token_ids"] == first["token_ids"]


def test_a_seeded_answer_does_not_depend_on_how_fast_the_machine_is(run, world, monkeypatch):
    arguments = ("generate", QUESTION, "-t", world / "target", "-d", world / "drafter", "-T", 1, "--seed", 5, "--json")
    monkeypatch.setattr("dspark.engine.start_profile.start_limit", lambda *args: DraftLimit(1))
    assert run(*arguments).json["token_ids"] == run(*arguments, "--max-draft-tokens", 3).json["token_ids"]


def test_whoever_gives_a_seed_hears_what_it_costs(run, world, monkeypatch):
    monkeypatch.setattr("dspark.engine.start_profile.start_limit", lambda *args: DraftLimit(1))
    arguments = ("generate", QUESTION, "-t", world / "target", "-d", world / "drafter", "-n", 2)
    sampled = (*arguments, "-T", 1, "--seed", 5)
    assert "rounds draft all 3 tokens" in run(*sampled).err
    for quiet in ((*sampled, "--max-draft-tokens", 3), (*arguments, "--seed", 5), (*arguments, "-T", 1)):
        assert "a seed" not in run(*quiet).err


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        (DraftLimit(0), "drafting does not pay on this machine; decoding plainly"),
        (DraftLimit(0, NOISY_PROFILE), f"{NOISY_PROFILE}; decoding plainly"),
        (DraftLimit(0, lookup=PromptLookup()), "drafting does not pay on this machine; only copying what repeats"),
        (DraftLimit(3, NO_PROFILE), NO_PROFILE),
    ],
)
def test_why_rounds_are_as_they_are_is_said(run, world, monkeypatch, limit, said):
    monkeypatch.setattr("dspark.engine.start_profile.start_limit", lambda *args: limit)
    arguments = ("generate", QUESTION, "-t", world / "target", "-d", world / "drafter", "-n", 2)
    err = run(*arguments).err
    assert said in err
    assert ("does not pay" in err) == (limit.warning is None)
    assert "decoding plainly" not in run(*arguments, "--max-draft-tokens", 0).err


def test_what_repeats_is_copied_unless_refused(run, world, monkeypatch):
    """The tiny target answers in circles soon; a drafter brings copies along, plain decoding asks for them."""
    monkeypatch.setattr("dspark.engine.start_profile.start_limit", lambda *args: DraftLimit(1, lookup=PromptLookup(2)))
    arguments = ("generate", QUESTION, "-t", world / "target", "-n", 80, "--ignore-eos", "--json")
    drafting = (*arguments, "-d", world / "drafter")

    def copied(*flags):
        return run(*flags).json["metrics"]["lookup_rounds"] > 0

    assert copied(*drafting)
    assert copied(*drafting, "--max-draft-tokens", 1)
    assert copied(*arguments, "-d", "none", "--lookup")
    for flags in (["--no-lookup"], ["--max-draft-tokens", 0]):
        assert not copied(*drafting, *flags)
    assert not copied(*arguments, "-d", "none")


def test_what_is_said_follows_what_was_asked(run, world, monkeypatch):
    monkeypatch.setattr("dspark.engine.start_profile.start_limit", lambda *args: DraftLimit(0, lookup=PromptLookup()))
    arguments = ("generate", QUESTION, "-t", world / "target", "-n", 2)
    drafting = (*arguments, "-d", world / "drafter")
    assert "decoding plainly" in run(*drafting, "--no-lookup").err
    monkeypatch.setattr("dspark.engine.start_profile.start_limit", lambda *args: DraftLimit(0))
    assert "only copying what repeats" in run(*drafting, "--lookup").err
    assert "only copying what repeats" in run(*arguments, "--lookup").err


def test_copies_and_no_drafts_at_all_contradict_each_other(run, world):
    result = run("generate", QUESTION, "-t", world / "target", "--lookup", "--max-draft-tokens", 0)
    assert result.status == 2
    assert "--lookup asks for copied drafts, --max-draft-tokens 0 allows none" in result.err


@pytest.mark.parametrize("option", [["--block-verification"], ["--max-draft-tokens", "1"], ["--max-draft-tokens", "0"]])
def test_drafting_options_change_no_greedy_text(run, world, option):
    arguments = (
        "generate",
        QUESTION,
        "-t",
        world / "target",
        "-d",
        world / "drafter",
        "-n",
        16,
        "--dtype",
        "fp32",
        *DRAFT,
    )
    assert run(*arguments, *option).out == run(*arguments).out


def test_a_target_without_a_shipped_drafter_is_remarked_on(run, world):
    arguments = ("generate", QUESTION, "-t", world / "target", "-n", 2)
    assert "no drafter is shipped for target" in run(*arguments).err
    assert "no drafter" not in run(*arguments, "-d", "none").err
    assert run(*arguments, "--json").err == ""


def test_raw_leaves_the_template_out(run, world):
    arguments = ("generate", QUESTION, "-t", world / "target", "-n", 8, "--json")
    assert run(*arguments, "--raw").json["token_ids"] != run(*arguments).json["token_ids"]


def test_the_prompt_comes_from_an_argument_a_file_or_stdin(run, world, tmp_path, monkeypatch):
    (tmp_path / "prompt.txt").write_text(QUESTION)
    monkeypatch.setattr(sys, "stdin", io.StringIO(QUESTION))
    arguments = ("-t", world / "target", "-n", 8, "--json")
    tokens = [
        run("generate", *prompt, *arguments).json["token_ids"]
        for prompt in ([QUESTION], ["--prompt-file", tmp_path / "prompt.txt"], ["-"])
    ]
    assert tokens[0] == tokens[1] == tokens[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["prompt", "stdin"]),
        (("x", "--prompt-file", "y"), ["once"]),
        (("  ",), ["empty"]),
        (("--prompt-file", "nowhere.txt"), ["nowhere.txt", "No such file"]),
        (("x", "-T", "-1"), ["temperature", "-1"]),
        (("x", "-T", "nan"), ["temperature", "nan"]),
        (("x", "-T", "warm"), ["temperature", "number"]),
        (("x", "--top-p", "0"), ["top_p"]),
        (("x", "--top-k", "-3"), ["top_k", "-3"]),
        (("x", "--min-p", "2"), ["min_p"]),
        (("x", "--repetition-penalty", "0"), ["repetition_penalty"]),
        (("x", "--seed", "-1"), ["seed"]),
        (("x", "-n", "0"), ["max_tokens"]),
        (("x", "--stop", ""), ["stop"]),
        (("x", "--max-draft-tokens", "-1"), ["max_draft_tokens"]),
        (("x", "--raw", "--system", "y"), ["--system", "--raw"]),
        (("x", "--dtype", "int3"), ["--dtype", "int3"]),
        (("x", "-t", "nowhere"), ["nowhere", "smollm2-135m"]),
        (("x", "-d", "nowhere"), ["nowhere"]),
        (("broken \udcff",), ["prompt", "UTF-8"]),
        (("x", "--system", "\udcff"), ["system", "UTF-8"]),
        (("--prompt-file", "n" * 300), ["too long"]),
        (("x", "-t", "n" * 300), ["too long"]),
        (("x", "-t", "~nobody-has-this-name/x"), ["cannot be opened"]),
        (("x", "-d", "n" * 300), ["too long"]),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, world, arguments, words):
    target = () if "-t" in arguments else ("-t", world / "target")
    run("generate", *arguments, *target).refused(*words)


def test_a_prompt_longer_than_the_context_is_refused(run, world):
    run("generate", "long " * 200, "-t", world / "target").refused("128", "tokens")


def test_a_prompt_file_that_is_not_text_is_refused(run, world, tmp_path):
    (tmp_path / "prompt.bin").write_bytes(b"\xff\xfe\x00")
    run("generate", "--prompt-file", tmp_path / "prompt.bin", "-t", world / "target").refused("UTF-8")


def test_stdin_that_is_not_text_is_refused(run, world, monkeypatch):
    for errors in ("strict", "surrogateescape"):  # as in a UTF-8 and in a C locale
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8", errors=errors))
        run("generate", "-", "-t", world / "target").refused("UTF-8")


@pytest.mark.parametrize("key", ["num_key_value_heads", "eos_token_id", "rms_norm_eps", "rope_parameters"])
def test_a_string_where_the_target_needs_a_number_is_refused(run, tmp_path, key):
    write_target(tmp_path / "target", seed=0)
    path = tmp_path / "target" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "one"}))
    run("generate", "x", "-t", tmp_path / "target").refused(key, "'one'")


def test_a_drafter_of_another_vocabulary_is_refused(run, world, tmp_path):
    write_target(tmp_path / "wide", seed=0, extra_tokens=5)
    run("generate", "x", "-t", tmp_path / "wide", "-d", world / "drafter").refused("vocab", "259", "264")


def test_a_drafter_of_another_target_is_refused(run, world, tmp_path):
    write_target(tmp_path / "target", seed=9)
    run("generate", "x", "-t", tmp_path / "target", "-d", world / "drafter").refused("trained for")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all", b"GGUF\x03\x00\x00\x00" + bytes(40)])
def test_an_unreadable_gguf_is_refused(run, tmp_path, content):
    (tmp_path / "model.gguf").write_bytes(content)
    run("generate", "x", "-t", tmp_path / "model.gguf").refused("model.gguf")


def test_a_damaged_target_is_refused(run, world, tmp_path):
    write_target(tmp_path / "target", seed=0)
    (tmp_path / "target" / "model.safetensors").write_bytes(b"{}")
    run("generate", "x", "-t", tmp_path / "target").refused("model.safetensors")
