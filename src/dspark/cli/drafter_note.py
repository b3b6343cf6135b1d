"""The remark that nothing speeds a target up, for verbs that decode."""

from dspark.cli import console
from dspark.cli.session import Session


def note_missing_drafter(session: Session, drafter: str | None, quiet: bool = False) -> None:
    """Say on stderr that no drafter is shipped for the session's target, if `drafter` left the choice open."""
    if drafter is None and session.drafter_directory is None:
        name = session.loop.target.info.name
        instead = "decoding plainly" if session.loop.options.lookup is None else "only copying what repeats"
        console.note(f"no drafter is shipped for {name}; {instead} (--drafter DIR names one)", quiet)
