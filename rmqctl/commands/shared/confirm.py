"""Asking a person before something is changed."""

from __future__ import annotations

import sys

import typer


def at_a_terminal() -> bool:
    """Whether somebody is there to be asked: cron and pipes are not."""
    try:
        return sys.stdin is not None and sys.stdin.isatty()
    except ValueError:  # closed
        return False


def agreed(question: str, *, yes: bool) -> bool:
    """Whether to go on: with ``--yes`` and where nobody is there, without a question.

    Ctrl-C and the end of input end the run as interrupted.
    """
    return yes or not at_a_terminal() or typer.confirm(question, err=True)
