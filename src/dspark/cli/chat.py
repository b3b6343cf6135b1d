"""`dspark chat`: a conversation on the terminal, or on a pipe, one question a line."""

import sys
from collections.abc import Iterator

from dspark.cli import console
from dspark.cli.conversation import Conversation
from dspark.cli.drafter_note import note_missing_drafter
from dspark.cli.options import (
    DEFAULT_TARGET,
    DrafterOption,
    DtypeOption,
    JsonOption,
    LookupOption,
    MaxDraftTokensOption,
    MaxTokensOption,
    MinPOption,
    SeedOption,
    SystemOption,
    TargetOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    examples,
    seed_or_fresh,
)
from dspark.cli.prompt_text import checked_text, tolerant_lines
from dspark.cli.runner import complain, explain
from dspark.cli.session import decode_options, open_session
from dspark.cli.summary import answer_json, summary
from dspark.errors import DsparkError

EPILOG = examples(
    "dspark chat",
    'dspark chat --system "You answer in one sentence." --temperature 0.7',
    r'printf "Hello!\nWho are you?\n" | dspark chat --json',
)
BANNER = "Ctrl-C stops an answer, /reset forgets the conversation, /exit or Ctrl-D leaves."


def chat(
    target: TargetOption = DEFAULT_TARGET,
    drafter: DrafterOption = None,
    system: SystemOption = None,
    max_tokens: MaxTokensOption = 512,
    temperature: TemperatureOption = 0.0,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    seed: SeedOption = None,
    max_draft_tokens: MaxDraftTokensOption = None,
    lookup: LookupOption = None,
    dtype: DtypeOption = "auto",
    json: JsonOption = False,
) -> None:
    """Talk with a target, several turns, answers streaming. Works on a pipe as well."""
    from dspark.core.params import check_sampling
    from dspark.types import SamplingParams

    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed_or_fresh(seed), max_tokens=max_tokens
    )
    check_sampling(params)
    checked_text(system or "", "system message")
    options, seeded = decode_options(max_draft_tokens), seed is not None
    session = open_session(
        target, drafter, dtype, options, quiet=json, measure_for=params, seeded=seeded, lookup=lookup
    )
    conversation = Conversation(session, params, system, quiet=json)
    if sys.stdin.isatty() and not json:
        console.note(BANNER)
        note_missing_drafter(session, drafter)
        _talk(conversation)
        return
    _listen(conversation, quiet=json)
    note_missing_drafter(session, drafter, quiet=json)


def _talk(conversation: Conversation) -> None:
    """Ask and answer until the user leaves; a turn that fails says why and is forgotten."""
    import readline  # noqa: F401  # gives input() its line editing

    while True:
        try:
            question = input("> ").strip()
        except EOFError:
            console.print_text("\n")
            return
        except KeyboardInterrupt:
            console.note(f"\n{BANNER}")
            continue
        if question == "/exit":
            return
        try:
            _answer(conversation, question, quiet=False)
        except DsparkError as error:
            complain(str(error))


def _listen(conversation: Conversation, quiet: bool) -> None:
    """Answer line by line. What fails ends the chat, but with --json the turns before it are printed first."""
    try:
        for question in _questions(tolerant_lines(sys.stdin)):
            _answer(conversation, question, quiet)
    except (Exception, KeyboardInterrupt) as error:
        if quiet:
            _print_turns(conversation, {"error": explain(error)[0]})
        raise
    if quiet:
        _print_turns(conversation)


def _print_turns(conversation: Conversation, *failed: dict[str, str]) -> None:
    turns = [*(answer_json(result) for result in conversation.results), *failed]
    console.print_json({"messages": conversation.messages, "turns": turns})


def _questions(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line.strip() == "/exit":
            return
        yield line.strip()


def _answer(conversation: Conversation, question: str, quiet: bool) -> None:
    if question == "/reset":
        conversation.reset()
        console.note("[forgotten]", quiet)
    elif question:
        result = conversation.ask(checked_text(question, "question"))
        if not quiet:
            console.print_text("\n")
        if result is not None:
            console.note(summary(result), quiet)
