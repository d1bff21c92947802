import sys
import threading
import time
from pathlib import Path

import pytest

from pmfl.deploy import guard as guards
from pmfl.deploy.create import create
from pmfl.deploy.guard import FINISHED, STOPPED, Guarded, guard
from pmfl.deploy.processes import Backoff, Stopped

ENDS = "import sys, pathlib; f = pathlib.Path(sys.argv[1]); n = len(f.read_text()) if f.exists() else 0; "
ENDS += "f.write_text('x' * (n + 1)); sys.exit([-1, 1, int(sys.argv[2])][min(n, 2)] if n else 9)"
WAITS = "import time; time.sleep(60)"


BORN = Guarded.__init__


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervisors of one line each, brought back at once."""

    def begin(self: Guarded, arguments: list[str]) -> None:
        self.arguments = [sys.executable, "-c", *arguments]
        self.waits, self.process = Backoff(first=0.01, most=0.01), None
        self.began = self.again = 0.0

    monkeypatch.setattr(Guarded, "__init__", begin)
    monkeypatch.setattr(guards, "LOOK", 0.02)


@pytest.mark.parametrize("code", [FINISHED, STOPPED, 2, 3])
def test_what_crashes_is_brought_back_until_it_ends_for_good(tmp_path: Path, code: int) -> None:
    file = tmp_path / "times"
    assert guard({"server": [ENDS, str(file), str(code)]}, "server", Stopped()) == code
    assert file.read_text() == "xxx"


def test_the_leaders_end_ends_all(tmp_path: Path) -> None:
    began = time.monotonic()
    assert guard({"server": [ENDS, str(tmp_path / "n"), "0"], "node 0": [WAITS]}, "server", Stopped()) == 0
    assert time.monotonic() - began < 20


def test_a_node_that_cannot_start_ends_all(tmp_path: Path) -> None:
    assert guard({"server": [WAITS], "node 0": [ENDS, str(tmp_path / "n"), "2"]}, "server", Stopped()) == 2


def test_asked_to_stop(tmp_path: Path) -> None:
    stopped = Stopped()
    threading.Timer(0.3, stopped.set).start()
    assert guard({"server": [WAITS]}, "server", stopped) == STOPPED


def test_a_supervisor_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pmfl.deploy.processes.die_with_parent", lambda parent: None)
    monkeypatch.setattr(Stopped, "listen", lambda self: self)
    monkeypatch.setenv("PMFL_PARENT", "1")
    assert guards.main(["server", str(tmp_path / "none")]) == 2
    assert "`pmfl deploy init DIR` makes a deployment folder" in capsys.readouterr().err
    create(tmp_path, 1, {}, [])
    assert guards.main(["node", str(tmp_path), "4"]) == 2
    assert "nodes/4" in capsys.readouterr().err


def test_a_supervisor_is_started_as_a_process_that_knows_its_parent(tmp_path: Path) -> None:
    one = object.__new__(Guarded)
    BORN(one, ["server", str(tmp_path / "none")])
    ends = time.monotonic() + 60
    while (code := one.look()) is None:
        assert time.monotonic() < ends
        time.sleep(0.05)
    assert code == 2  # there is no such folder
    one.stop()


def test_a_supervisor_that_does_not_listen_is_ended_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "GRACE", 0.1)
    one = Guarded(["import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"])
    one.look()
    assert one.process is not None
    time.sleep(0.5)
    one.stop()
    assert one.process.poll() == -9
