"""Signals that come where Python drops what their handlers raise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from rmqctl.commands.app.exit_codes import Terminated, report

PROGRAM = """
import os, signal, sys, time, weakref
from rmqctl.commands.app.exit_codes import Terminated, terminable

class Thing:
    pass

def sent(_=None):
    os.kill(os.getpid(), signal.{name})
    for _ in range(1000):
        pass

class Dying:
    def __del__(self):
        sent()

with terminable():
    thing = Dying() if {dying} else Thing()
    reference = None if {dying} else weakref.ref(thing, sent)
    try:
        del thing
        time.sleep(20)
    except {raised}:
        print("heard")
"""


@pytest.mark.parametrize("dying", [True, False], ids=["finaliser", "callback"])
@pytest.mark.parametrize(("name", "raised"), [("SIGTERM", "Terminated"),
                                              ("SIGINT", "KeyboardInterrupt")])
def test_a_signal_in_a_finaliser_is_heard(name, raised, dying):
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(
        name=name, raised=raised, dying=dying)], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"heard\n", b"")
    assert time.monotonic() - started < 15


def test_other_errors_there_are_shown():
    program = ("from rmqctl.commands.app.exit_codes import terminable\n"
               "class Dying:\n    def __del__(self):\n        raise ValueError('odd')\n"
               "with terminable():\n    Dying()\n")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True,
                          env={**os.environ})
    assert b"ValueError: odd" in done.stderr


def test_the_handlers_before_come_back():
    from rmqctl.commands.app.exit_codes import terminable

    before = signal.getsignal(signal.SIGTERM), sys.unraisablehook
    with terminable():
        assert signal.getsignal(signal.SIGTERM) is not before[0]
    assert (signal.getsignal(signal.SIGTERM), sys.unraisablehook) == before


@pytest.mark.parametrize(("raised", "code"), [(Terminated, 143), (KeyboardInterrupt, 130)])
def test_what_a_library_makes_of_a_signal_is_still_the_signal(raised, code, capsys):
    try:
        try:
            raise raised
        except BaseException as error:
            raise RuntimeError("Query interrupted") from error
    except RuntimeError as error:
        assert report(error, []) == code
    assert "defect" not in capsys.readouterr().err
    assert report(RuntimeError("odd"), []) == 70
