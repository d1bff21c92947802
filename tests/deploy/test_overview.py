import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pmfl.deploy import stopping
from pmfl.deploy.create import create
from pmfl.deploy.journal import Journal, read, told
from pmfl.deploy.overview import as_text, overview
from pmfl.deploy.processes import Lock
from pmfl.deploy.stopping import running, stop
from pmfl.errors import EngineError

STATUS: dict[str, Any] = {
    "run": "abc",
    "method": "pmfl",
    "state": "running",
    "updated": 995.0,
    "round": 4,
    "rounds": 30,
    "seconds_per_round": 10.0,
    "seconds_left": 260.0,
    "metrics": {"test/accuracy": 0.5},
    "note": "",
    "clients": [
        {"id": 0, "name": "ward", "here": True, "last_seen": 999.0, "replies": 4, "participation": 1.0, "weight": 1.0},
        {"id": 1, "name": "lab", "here": False, "last_seen": 400.0, "replies": 1, "participation": 0.25, "late": 2},
    ],
}


def test_before_anything_was_started(tmp_path: Path) -> None:
    create(tmp_path, 2, {}, [])
    found = overview(tmp_path)
    assert (found["state"], found["round"], len(found["clients"])) == ("not started", None, 2)
    text = as_text(found)
    assert "not started, no round yet" in text
    assert "nothing runs here" in text


def test_a_run_under_way(tmp_path: Path) -> None:
    made = create(tmp_path, 2, {}, [])
    made.status.write_text(json.dumps(STATUS))
    journal = Journal(made.folder)
    journal.restarted("app")
    journal.tell("x")
    lock = Lock(made.folder / "supervisor.lock", "it")
    lock.take()
    found = overview(tmp_path, now=1000.0)
    lock.release()
    assert (found["state"], found["age"], found["restarts"]) == ("running", 5.0, {"app": 1})
    lines = as_text(found).splitlines()
    assert lines[0] == "pmfl: running, round 4 of 30, 10.0 s a round, about 4 min left"
    assert "running here: server; brought back: app 1 times" in lines[1]
    rows = [line.split() for line in lines if line.startswith(("0 ", "1 "))]
    assert rows[0] == ["0", "ward", "yes", "now", "4", "rounds,", "100%", "1", "0", "0", "0"]
    assert rows[1] == ["1", "lab", "no", "10", "min", "ago", "1", "rounds,", "25%", "-", "2", "0", "0"]


@pytest.mark.parametrize(
    ("status", "supervisor", "state"),
    [
        ({**STATUS, "state": "done"}, "finished", "done"),
        (STATUS, "failed", "failed"),
        (STATUS, "stopped", "stopped"),
        (STATUS, "running", "stopped"),
    ],
)
def test_without_a_server_nobody_is_here(tmp_path: Path, status: Any, supervisor: str, state: str) -> None:
    made = create(tmp_path, 2, {}, [])
    made.status.write_text(json.dumps(status))
    Journal(made.folder).state(supervisor, error="boom")
    found = overview(tmp_path, now=1000.0)
    assert (found["state"], found["error"]) == (state, "boom")
    assert "note: boom" in as_text(found)
    assert not any(client["here"] for client in found["clients"])


def test_where_the_model_is(tmp_path: Path) -> None:
    made = create(tmp_path, 1, {}, [])
    made.status.write_text(json.dumps({**STATUS, "state": "done", "note": "a note", "seconds_left": None}))
    made.result.mkdir()
    text = as_text(overview(tmp_path))
    assert f"the model is in {made.result}" in text
    assert "note: a note" in text


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(None, "?"), (0.4, "0 s"), (119, "119 s"), (120, "2 min"), (7199, "120 min"), (7200, "2 h"), (172800, "2 d")],
)
def test_how_long_is_left_in_words(tmp_path: Path, seconds: float | None, words: str) -> None:
    made = create(tmp_path, 1, {}, [])
    made.status.write_text(json.dumps({**STATUS, "seconds_left": seconds}))
    lock = Lock(made.folder / "supervisor.lock", "it")
    lock.take()
    assert as_text(overview(tmp_path)).splitlines()[0].endswith(f"about {words} left")
    lock.release()


@pytest.mark.parametrize("content", ["", "{", "[1]", "\0"])
def test_a_file_that_was_cut_short_says_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "supervisor.json").write_text(content)
    assert read(tmp_path) == {}
    assert told(tmp_path / "none.json") == {}


def test_a_journal_remembers_restarts_and_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Journal(tmp_path)
    first.child("app", 7)
    first.restarted("app")
    first.state("running", run=1)
    assert read(tmp_path)["children"] == {"app": 7}
    monkeypatch.setattr("pmfl.deploy.journal.LOG_BYTES", 10)
    second = Journal(tmp_path)
    second.restarted("app")
    second.child("app", None)
    second.tell("again")
    assert read(tmp_path)["restarts"] == {"app": 2}
    assert read(tmp_path)["children"] == {}
    assert (tmp_path / "events.log.1").exists()
    events = [json.loads(line)["what"] for line in (tmp_path / "events.log").read_text().splitlines()]
    assert events == ["again"]


def test_a_full_disk_does_not_stop_a_journal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    Journal(tmp_path / "file").tell("x")


HOLD = (
    "import sys, time; from pathlib import Path; from pmfl.deploy.processes import Lock, Stopped; "
    "s = Stopped().listen(); Lock(Path(sys.argv[1]), 'it').take(); print('held', flush=True); s.wait(60)"
)


def test_stopping_asks_every_supervisor_and_waits(tmp_path: Path) -> None:
    create(tmp_path, 2, {}, [])
    files = [tmp_path / "server" / "supervisor.lock", tmp_path / "nodes" / "1" / "supervisor.lock"]
    held = [
        subprocess.Popen([sys.executable, "-c", HOLD, str(file)], stdout=subprocess.PIPE, text=True) for file in files
    ]
    for process in held:
        assert process.stdout
        process.stdout.readline()
    assert running(tmp_path) == {"server": held[0].pid, "node 1": held[1].pid}
    assert stop(tmp_path) == ["node 1", "server"]
    for process in held:
        assert process.wait(5) == 0
        assert process.stdout
        process.stdout.close()
    assert stop(tmp_path) == []


def test_what_does_not_stop_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path, 1, {}, [])
    monkeypatch.setattr(stopping, "WAIT", 0.2)
    monkeypatch.setattr(stopping, "_ask", lambda pid: None)
    lock = Lock(tmp_path / "up.lock", "it")
    lock.take()
    with pytest.raises(EngineError, match=f"still running: up .process {os.getpid()}"):
        stop(tmp_path)
    lock.release()


def test_one_that_was_brought_back_meanwhile_is_asked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, int]] = [{"up": 5}, {"up": 5, "server": 6}, {}]
    asked = list[int]()
    monkeypatch.setattr(stopping, "running", lambda root: found.pop(0))
    monkeypatch.setattr(stopping, "_ask", asked.append)
    assert stop(tmp_path) == ["server", "up"]
    assert asked == [5, 6]


def test_a_supervisor_of_another_user_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(EngineError, match="belongs to another user"):
        stopping._ask(1)

    def gone(pid: int, number: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "kill", gone)
    stopping._ask(1)
