"""How every verb ends: exit status 0 done, 1 failure, 2 bad usage or input, 130 interrupted; errors are one line."""

import errno
import os
import traceback
from collections.abc import Sequence

import typer

from dspark.disk import system_error
from dspark.errors import DsparkError, EndpointError, NumericalError

DONE, FAILURE, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
DEBUG_VARIABLE = "DSPARK_DEBUG"

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MACHINE_ERRORS = (*_FULL, errno.EIO, errno.EMFILE, errno.ENFILE)
"""What the system could not do; every other complaint about a file is about the name that was given."""


def exit_status(app: typer.Typer, arguments: Sequence[str]) -> int:
    """Run `app` on `arguments`; whatever it raises becomes one line on stderr and the status that belongs to it."""
    try:
        status = app(args=list(arguments), prog_name="dspark", standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        message, status = explain(error)
        complain(message)
        return status
    if status == INTERRUPTED:  # typer turns Ctrl-C into this status without a word
        complain("interrupted")
    return status if isinstance(status, int) else DONE


def explain(error: BaseException) -> tuple[str, int]:
    """The one-line message and the exit status of an error."""
    if isinstance(error, typer.TyperException):
        return f"{error.format_message().rstrip('.')}. {_help_hint(error)}", BAD_INPUT
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, DsparkError):
        return str(error), FAILURE if isinstance(error, NumericalError | EndpointError) else BAD_INPUT
    refusal = system_error(error)
    if refusal is not None and (refusal.filename is not None or refusal.errno in _MACHINE_ERRORS):
        return _refused(refusal), FAILURE if refusal.errno in _MACHINE_ERRORS else BAD_INPUT
    if isinstance(error, MemoryError):
        return "out of memory; use a shorter context, a smaller batch or a smaller model", FAILURE
    advice = f"set {DEBUG_VARIABLE}=1 to see the traceback, and report it"
    return f"unexpected {type(error).__name__}: {error} ({advice})", FAILURE


def _refused(error: OSError) -> str:
    """What the system would not do, with which file if it is known."""
    file = "" if error.filename is None else f"{error.filename}: "
    advice = "; make room, and run the same command again" if error.errno in _FULL else ""
    return f"{file}{error.strerror}{advice}"


def complain(message: str) -> None:
    """Print `error: message` on stderr, on one line whatever the message holds."""
    typer.echo(f"error: {' '.join(message.split())}", err=True)


def _help_hint(error: typer.TyperException) -> str:
    command = getattr(getattr(error, "ctx", None), "command_path", "dspark")
    return f"See `{command} --help`."
