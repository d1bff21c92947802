"""An error that a new start would only repeat, told by the process that met it to the one that would start it again.

What a process says of its end is an exit code, and Flower's processes have but two of them. So the error is left in a
file, in words, and whoever stands above raises it again instead of trying once more.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pmfl.core.files import replacing
from pmfl.deploy.journal import told
from pmfl.errors import PmflError, RankLost, StoreError


class Ended(PmflError):
    """Another process's error, with the exit code that it has there."""

    def __init__(self, words: Mapping[str, Any]) -> None:
        super().__init__(str(words["error"]), hint=str(words["hint"]), code=str(words["code"]))
        self.exit_code = int(words["exit_code"])


def in_words(error: PmflError) -> dict[str, Any]:
    """What ``Ended`` takes."""
    return {"error": error.message, "hint": error.hint, "code": error.code, "exit_code": error.exit_code}


def repeats(error: PmflError) -> bool:
    """Whether a new start would end in the same way. A disk may have space by then, a folder may be free."""
    return not isinstance(error, (StoreError, RankLost))


@contextlib.contextmanager
def leaving(file: Path) -> Iterator[None]:
    """Leave an error that would repeat in ``file``. A full disk costs a few more tries."""
    forget(file)
    try:
        yield
    except PmflError as error:
        if repeats(error):
            with contextlib.suppress(OSError), replacing(file) as beside:
                beside.write_text(json.dumps(in_words(error)), "utf-8")
        raise


def forget(file: Path) -> None:
    """What was left there is of an earlier start."""
    with contextlib.suppress(OSError):
        file.unlink()


def left(file: Path) -> Ended | None:
    """The error that was left, if one was."""
    words = told(file)
    return Ended(words) if {"error", "hint", "code", "exit_code"} <= words.keys() else None
