"""How the command ends: by itself, by a signal, by a reader who has had enough."""

from __future__ import annotations

import copy
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pmfl
from pmfl import cli, errors
from pmfl.cli import commands


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The command sets handlers of its own, and is deaf in the end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def ends(monkeypatch: pytest.MonkeyPatch, does: Any, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["pmfl", *words])
    monkeypatch.setattr(commands, "app", does)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_130_and_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    def interrupted() -> None:
        os.kill(os.getpid(), number)
        signal.pause()

    assert ends(monkeypatch, interrupted, "run", "my study.toml") == 130
    assert capsys.readouterr().err == "interrupted; nothing is lost. Go on with:\n  pmfl run 'my study.toml'\n"
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # a second one would cut the tidying short


IMPORTING = """
import signal, time
from pmfl import cli
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, cli._interrupt)
cli.PATIENCE = {patience}
try:
    import careless
    time.sleep(5)
except cli.Interrupted:
    print(careless.ended if "careless" in globals() else "broken off")
"""
CARELESS = """
import os, signal, time
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.3)
    import json
except BaseException:
    ended = "lost"
else:
    ended = "whole"
time.sleep({more})
"""


@pytest.mark.parametrize(("patience", "more", "said"), [(10, 0, "whole"), (0.5, 5, "broken off")])
def test_an_import_is_not_broken_off_unless_it_takes_long(
    tmp_path: Path, patience: float, more: float, said: str
) -> None:
    (tmp_path / "careless.py").write_text(CARELESS.format(more=more))
    command = [sys.executable, "-c", IMPORTING.format(patience=patience)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == said


@pytest.mark.parametrize("error", [ValueError("Interrupted:"), errors.StoreError("half")])
def test_what_a_signal_breaks_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def interrupted() -> None:
        cli._heard.append(signal.SIGTERM)
        raise error

    assert ends(monkeypatch, interrupted, "run", "x.toml") == 130
    assert capsys.readouterr().err == "interrupted; nothing is lost. Go on with:\n  pmfl run x.toml\n"


def test_what_breaks_by_itself_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(sys, "argv", ["pmfl", "status"])
    monkeypatch.setattr(commands, "app", broken)
    with pytest.raises(ValueError, match="a mistake of ours"):
        cli.main()


def test_other_commands_have_nothing_to_go_on_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise cli.Interrupted

    assert ends(monkeypatch, interrupted, "status") == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_who_has_had_enough_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)

        def talk() -> None:
            os.write(stream.fileno(), b"runs")

        assert ends(monkeypatch, talk, "status") == 0


def test_an_error_has_its_code_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise errors.DataMissing("svhn is not here", hint="pmfl data get svhn", code="D101")

    assert ends(monkeypatch, missing, "run") == 3
    assert capsys.readouterr().err == "error[D101]: svhn is not here\n\nhint: pmfl data get svhn\n"


def test_python_m_pmfl_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["pmfl", "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("pmfl", run_name="__main__")
    assert not ended.value.code
    assert "Play the runs of a study" in capsys.readouterr().out


def test_errors_keep_what_they_say_when_they_cross_processes() -> None:
    for error in (
        errors.SpecError("what", hint="do", code="S101"),
        errors.Diverged(round=3, clients=[1, 2], what="the update"),
    ):
        found = copy.copy(error)  # by __reduce__, as between processes
        assert (type(found), str(found), found.__dict__) == (type(error), str(error), error.__dict__)
    assert str(errors.PmflError("alone")) == "alone"


def test_the_package_names_what_it_has() -> None:
    assert "Run" in dir(pmfl)
    assert all(getattr(pmfl, name) is not None for name in pmfl.__all__)
    with pytest.raises(AttributeError, match=r"pmfl has no `Runn`; it has .*Run"):
        pmfl.Runn  # noqa: B018
