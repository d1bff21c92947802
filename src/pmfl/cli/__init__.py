"""Layer 5: the command line. A layer below is imported only when a command needs it."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from types import FrameType
from typing import NoReturn

from pmfl.errors import PmflError


class Interrupted(BaseException):
    """Ctrl-C, or the polite signal to stop. Not a KeyboardInterrupt, which the command-line library would swallow."""


def main() -> None:
    """The `pmfl` command: results on stdout, everything else on stderr, and an exit code that says how it went."""
    _heard.clear()
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
        from pmfl.cli.commands import app

        app()
    except Interrupted:
        _say_interrupted()
    except PmflError as error:
        if os.environ.get("PMFL_DEBUG"):
            traceback.print_exc()
        if _heard:
            _say_interrupted()
        sys.stderr.write(f"error[{error.code}]: {error}\n")
        sys.exit(error.exit_code)
    except BrokenPipeError:  # `pmfl status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception:
        if not _heard:
            raise
        _say_interrupted()  # compiled code may turn what a signal raises in it into an error of its own
    finally:
        _deafen()  # what is left is to go home: the exit code says how it went


def _say_interrupted() -> NoReturn:
    command = shlex.join(["pmfl", *sys.argv[1:]])
    again = f"; nothing is lost. Go on with:\n  {command}" if "run" in sys.argv[1:2] else ""
    sys.stderr.write(f"interrupted{again}\n")
    sys.exit(130)


_heard: list[int] = []  # the signal, and the alarms since that met an import
LOOK, PATIENCE = 0.02, 10.0  # seconds: between two such alarms, and until an import is broken off after all


def _interrupt(number: int, frame: FrameType | None) -> None:
    _deafen()  # a second signal must not cut the tidying short
    _heard.append(number)
    # Libraries try imports and go on without what fails: one that is broken off would be lost, and leave half a module.
    if _importing(frame) and hasattr(signal, "setitimer") and len(_heard) < PATIENCE / LOOK:
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, LOOK)
    else:
        raise Interrupted


def _importing(frame: FrameType | None) -> bool:
    """Whether what was interrupted is part of an import."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def heed() -> None:
    """Stop if a signal was heard and then lost: what is raised in a finalizer or a callback goes no further."""
    if _heard and not isinstance(sys.exception(), Interrupted):
        raise Interrupted


def _deafen() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
