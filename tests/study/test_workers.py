"""What worker processes inherit from the one that starts them: nothing but what they are told."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from pmfl.errors import PmflError
from pmfl.study import nursery
from pmfl.study.crews import Team


def describe(send: Connection) -> None:
    said = {
        "folder": str(Path.cwd()),
        "environment": os.environ.get("PMFL_TOLD"),
        "path": sys.path,
        "marked": hasattr(nursery, "marked"),
        "threads": threading.active_count(),
        "torch": "torch" in sys.modules,
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }
    nursery.listen()
    said["listening"] = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, []))
    send.send_bytes(json.dumps(said).encode())


def test_a_worker_has_nothing_of_its_parents_but_what_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.randn(300, 300) @ torch.randn(300, 300)
    monkeypatch.setattr(nursery, "marked", True, raising=False)
    monkeypatch.setenv("PMFL_TOLD", "yes")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    receive, send = multiprocessing.Pipe(duplex=False)
    end = threading.Event()
    waiting = threading.Thread(target=end.wait)
    waiting.start()
    worker = nursery.start(describe, (send,))
    try:
        assert receive.poll(60)
        said = json.loads(receive.recv_bytes())
    finally:
        end.set()
        waiting.join()
        worker.join()
        receive.close()
        send.close()
    assert said == {
        "folder": str(tmp_path),
        "environment": "yes",
        "path": sys.path,
        "marked": False,
        "threads": 1,
        "torch": True,
        "blocked": [signal.SIGINT, signal.SIGTERM],
        "listening": [],
    }
    assert worker.exitcode == 0


SCRIPT = """
import sys
from pathlib import Path

import pmfl

with Path("started").open("a") as started:
    started.write(__name__ + "\\n")
asked = pmfl.run_spec({"method": "fedavg", "data": {"clients": 5}, "training": {"rounds": 1}})
print(pmfl.run_all(Path("out"), "mine", [asked], jobs=1)[0].status)
"""


def test_a_script_without_a_guard_runs_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.stdout, ended.stderr) == ("done\n", "")
    assert (tmp_path / "started").read_text() == "__main__\n"


def linger(send: Connection) -> None:
    send.send_bytes(b"here")
    threading.Event().wait(60)


def test_a_worker_whose_nursery_is_gone_is_reported() -> None:
    from multiprocessing import forkserver

    receive, send = multiprocessing.Pipe(duplex=False)
    worker = nursery.start(linger, (send,))
    try:
        assert receive.recv_bytes() == b"here"
        home: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        os.kill(home, signal.SIGKILL)
        os.waitid(os.P_PID, home, os.WEXITED | os.WNOWAIT)
        worker.join(60)
        with pytest.raises(PmflError, match=f"worker process {worker.pid} is not known") as caught:
            Team([worker]).check()
        assert "goes on" in caught.value.hint
    finally:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        receive.close()
        send.close()
    again = nursery.start(linger, (send_to_nobody(),))
    again.kill()
    again.join()
    assert again.exitcode == -signal.SIGKILL


def send_to_nobody() -> Connection:
    receive, send = multiprocessing.Pipe(duplex=False)
    receive.close()
    return send
