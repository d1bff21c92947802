import io
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pmfl.deploy.processes import (
    Backoff,
    Child,
    Lock,
    Stopped,
    copy_log,
    end_leftovers,
    free_port,
    leftovers,
    port_is_free,
    wait_for_port,
)
from pmfl.errors import EngineError, StoreError

PARENT = """
import os, subprocess, sys, time
from pmfl.deploy.processes import Child
from pathlib import Path
code = "import os; from pmfl.deploy.processes import die_with_parent as d; d(int(os.environ['PMFL_PARENT'])); "
child = Child("c", ["-c", code + "import time; print('here'); time.sleep(60)"], Path(sys.argv[1]), {})
print(child.pid, flush=True)
time.sleep(60)
"""


def wait_until(what: object, seconds: float = 10.0) -> None:
    assert callable(what)
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends, "it did not come to pass"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


def test_a_child_ends_with_its_parent_however_that_ends(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "c.log"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(log)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    wait_until(lambda: log.exists() and "here" in log.read_text())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: gone(pid))


def test_a_child_says_how_it_ended_and_is_quiet_towards_the_world(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['FLWR_TELEMETRY_ENABLED'], os.environ['X']); sys.exit(7)"
    child = Child("c", ["-c", code], tmp_path / "c.log", {"X": "y"})
    wait_until(lambda: not child.running)
    child.stop()
    assert child.code == 7
    assert child.lived > 0
    assert (tmp_path / "c.log").read_text() == "0 y\n"


def test_a_child_that_does_not_listen_is_ended_for_good(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(60)"
    child = Child("c", ["-c", code], tmp_path / "c.log", {})
    wait_until(lambda: (tmp_path / "c.log").exists())
    child.stop(grace=0.2)
    assert child.code == -signal.SIGKILL


def test_logs_stay_small(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    copy_log(io.BytesIO(b"".join(b"line %d\n" % i for i in range(100))), log, limit=200)
    assert log.stat().st_size <= 210
    assert log.read_text().endswith("line 99\n")
    assert (tmp_path / "a.log.1").stat().st_size <= 210


def test_a_log_that_cannot_be_written_does_not_stop_the_process(tmp_path: Path) -> None:
    stream = io.BytesIO(b"a\nb\n")
    copy_log(stream, tmp_path / "no folder" / "a.log")
    assert stream.closed


def test_one_supervisor_a_folder(tmp_path: Path) -> None:
    first, second = Lock(tmp_path / "f" / "lock", "it"), Lock(tmp_path / "f" / "lock", "it")
    assert first.holder() is None
    first.take()
    assert second.holder() == os.getpid()
    with pytest.raises(EngineError, match=f"it is running already .process {os.getpid()}"):
        second.take()
    first.release()
    first.release()
    assert second.holder() is None
    second.take()
    second.release()


def test_a_lock_whose_holder_was_killed_is_free(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from pmfl.deploy.processes import Lock; "
        "Lock(Path(sys.argv[1]), 'it').take(); print('held', flush=True); time.sleep(60)"
    )
    file = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", code, str(file)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout
        holder.stdout.readline()
        assert Lock(file, "it").holder() == holder.pid
        holder.kill()
    Lock(file, "it").take()


def test_waits_grow_and_are_forgotten() -> None:
    waits = Backoff(first=1.0, most=5.0, calm=10.0)
    assert [waits.next(0.1) for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    assert [waits.next(11.0), waits.next(0.1)] == [1.0, 2.0]


def test_asking_to_stop_ends_a_wait() -> None:
    old = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        stopped = Stopped().listen()
        assert not stopped
        assert not stopped.wait(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped.wait(5.0)
        assert stopped
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def test_a_taken_port_is_said_and_a_freed_one_is_used() -> None:
    port = free_port()
    assert port_is_free("127.0.0.1", port)
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        assert not port_is_free("127.0.0.1", port)
        with pytest.raises(StoreError, match=f"port {port} of 127.0.0.1 is taken"):
            wait_for_port("127.0.0.1", port, Stopped(), seconds=0.3)
    wait_for_port("127.0.0.1", port, Stopped())


def test_asked_to_stop_while_a_port_is_taken() -> None:
    stopped = Stopped()
    stopped.set()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        with pytest.raises(StoreError, match="is taken by another program"):
            wait_for_port("127.0.0.1", server.getsockname()[1], stopped)


def test_what_ended_by_itself_meanwhile_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr("pmfl.deploy.processes.leftovers", lambda marker: [7])
    monkeypatch.setattr(os, "kill", gone)
    assert end_leftovers("x") == [7]

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    with pytest.raises(PermissionError):
        end_leftovers("x")


def test_what_an_earlier_supervisor_left_is_ended_and_nothing_else(tmp_path: Path) -> None:
    sleep = "import sys, time; print('x', flush=True); time.sleep(60)"
    mine, other = (
        subprocess.Popen([sys.executable, "-c", sleep, word, f"{tmp_path}#server"], stdout=subprocess.PIPE)
        for word in ("pmfl.deploy.launch_superlink", "something.else")
    )
    try:
        for process in (mine, other):
            assert process.stdout
            process.stdout.readline()
        assert leftovers(f"{tmp_path}#node") == []
        assert end_leftovers(f"{tmp_path}#server") == [mine.pid]
        assert mine.wait(5) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (mine, other):
            process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()
