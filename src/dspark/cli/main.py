"""The command `dspark` and its verbs."""

import sys
from typing import Annotated

import typer

import dspark
from dspark.cli import bench, calibrate, chat, data, doctor, generate, inspect, profile, train
from dspark.cli import eval as evaluation
from dspark.cli.runner import BAD_INPUT, exit_status

app = typer.Typer(
    name="dspark",
    help="Lossless speculative decoding with DSpark drafters.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate", epilog=generate.EPILOG)(generate.generate)
app.command("chat", epilog=chat.EPILOG)(chat.chat)
app.command("eval", epilog=evaluation.EPILOG)(evaluation.evaluate)
app.command("bench", epilog=bench.EPILOG)(bench.bench)
app.add_typer(data.app, name="data")
app.command("train", epilog=train.EPILOG)(train.train)
app.command("calibrate", epilog=calibrate.EPILOG)(calibrate.calibrate)
app.command("profile", epilog=profile.EPILOG)(profile.profile)
app.command("inspect", epilog=inspect.EPILOG)(inspect.inspect)
app.command("doctor", epilog=doctor.EPILOG)(doctor.doctor)


@app.callback(invoke_without_command=True)
def dspark_command(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", show_default=False)] = False,
) -> None:
    """Lossless speculative decoding with DSpark drafters.

    A target model writes; a small drafter guesses ahead; the target checks many guesses at once. The text is
    distributed exactly as if the target had written it alone.
    """
    if version:
        typer.echo(f"dspark {dspark.__version__}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(BAD_INPUT)


def run() -> None:
    """Entry point of the console script."""
    sys.exit(exit_status(app, sys.argv[1:]))
