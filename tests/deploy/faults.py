"""The kinds of faults of the campaign. Each breaks one thing of a running deployment and says what came of it."""

import os
import resource
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

from pmfl.core.keys import Key
from tests.deploy.field import Field, send

PATIENCE = 240.0  # seconds until something is taken as never


def kill_node(field: Field, k: int, pause: float) -> dict[str, Any]:
    """The node's whole tree of processes, by killing what stands above all of it; started again after a while."""
    field.started[f"node{k}"].kill()
    field.started[f"node{k}"].wait()
    time.sleep(pause)
    field.start_node(k)
    return {}


def kill_node_at_once(field: Field, k: int) -> dict[str, Any]:
    return kill_node(field, k, 1.0)


def kill_node_for_long(field: Field, k: int) -> dict[str, Any]:
    return kill_node(field, k, 30.0)


def kill_child(field: Field, name: str) -> dict[str, Any]:
    pid = field.server_known.get("children", {}).get(name)
    if pid is None:
        return {"skipped": f"{name} was not there"}
    send(pid, signal.SIGKILL)
    return {}


def kill_app(field: Field, k: int) -> dict[str, Any]:
    return kill_child(field, "app")


def kill_superlink(field: Field, k: int) -> dict[str, Any]:
    return kill_child(field, "superlink")


def kill_supervisor(field: Field, k: int) -> dict[str, Any]:
    send(field.server_known["pid"], signal.SIGKILL)
    return {}


def freeze_node(field: Field, k: int) -> dict[str, Any]:
    field.signal_node(k, signal.SIGSTOP)
    time.sleep(field.deadline + 3.0)
    field.signal_node(k, signal.SIGCONT)
    return {}


def cut_network(field: Field, k: int) -> dict[str, Any]:
    field.cables[k].cut()
    time.sleep(field.deadline / 2)
    field.cables[k].heal()
    return {}


def fill_disk(field: Field, k: int) -> dict[str, Any]:
    """The node's app can write nothing for a while: every write fails, as on a full disk."""
    pids = field.node_pids(k)
    free = resource.RLIM_INFINITY
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, free))
    time.sleep(field.deadline / 2)
    for pid in pids:
        try:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (free, free))
        except ProcessLookupError:  # it was brought back meanwhile, without the limit
            continue
    return {}


def corrupt_memory(field: Field, k: int) -> dict[str, Any]:
    """A byte is turned in every memory file; that must be noticed, reported, and cost the memory alone."""
    fresh = field.status["clients"][k]["fresh"]
    files = list((field.root / "nodes" / str(k) / "memory").glob("*.safetensors"))
    for file in files:
        try:
            data = bytearray(file.read_bytes())
            data[-1] ^= 0xFF
            file.write_bytes(data)
        except FileNotFoundError:  # dropped by its node at this moment
            continue
    if not files:
        return {"skipped": "no memory yet"}
    noticed = field.until(lambda: field.done or field.status["clients"][k]["fresh"] > fresh, 45.0)
    return {"noticed_after": noticed}


KINDS: dict[str, Callable[[Field, int], dict[str, Any]]] = {
    "node killed, back after 1 s": kill_node_at_once,
    "node killed, back after 30 s": kill_node_for_long,
    "app killed": kill_app,
    "SuperLink killed": kill_superlink,
    "supervisor killed": kill_supervisor,
    "node frozen beyond the deadline": freeze_node,
    "network cut and healed": cut_network,
    "disk full on a node": fill_disk,
    "memory file corrupted": corrupt_memory,
}
SERVER = ("app killed", "SuperLink killed", "supervisor killed")
RESTARTED = ("node killed, back after 1 s", "node killed, back after 30 s")
SLACK = 2.0  # seconds that a round may be lost beyond the deadline
AGAIN = 10.0  # seconds after which a restarted node that was let in has taken part


def inject(field: Field, kind: str, key: Key) -> dict[str, Any]:
    """Break one thing at a random moment, and measure how it heals."""
    draw = key.numpy()
    k = int(draw.integers(len(field.cables)))
    time.sleep(float(draw.uniform(0.0, 4.0)))
    before, sent, fresh = field.round, len(field.sent(k)), field.status["clients"][k]["fresh"]
    began, at, load = time.monotonic(), time.time(), os.getloadavg()[0]
    found: dict[str, Any] = {"kind": kind, "client": k, "round": before, "deadline": field.deadline}
    if field.done:
        return {**found, "skipped": "the run was over"}
    with Watch(field) as watch:
        found |= KINDS[kind](field, k)
        cured, counted = time.time(), field.replies(k)
        healed = field.until(lambda: field.done or watch.rounds >= 1, PATIENCE)
        found["healed_after"] = round(time.monotonic() - began, 2)
        found["rounds_meanwhile"] = field.round - before
        back = field.until(lambda: field.done or len(field.sent(k)) > sent, PATIENCE)
        taken = field.until(lambda: field.done or field.replies(k) > counted, PATIENCE)
        now = time.time()
    if taken is not None and field.replies(k) <= counted:
        return {**found, "skipped": "the run was over before it could be seen"}
    found["healed"], found["client_back"] = healed is not None, back is not None and taken is not None
    entered = max(cured, field.accepted(k)) if field.accepted(k) > at else cured
    after = field.sent(k)[sent:]
    found["entered_after"] = round(entered - cured, 2)  # the server let it in again, so long after its cure
    found["replied_after"] = round(next((one["time"] for one in after if one["time"] >= entered), now) - entered, 2)
    found["counted_after"] = round(now - entered, 2)
    found["with_its_history"] = bool(after) and not after[0]["fresh"]
    found["counted_as_fresh"] = field.status["clients"][k]["fresh"] - fresh
    found["longest_round"] = round(watch.longest, 2)
    found["load"] = round(max(load, os.getloadavg()[0]), 2)
    return found


def in_time(line: dict[str, Any]) -> bool:
    """Whether an injection cost no more time than was promised."""
    kept = bool(line["healed"] and line["client_back"]) and line["longest_round"] <= line["deadline"] + SLACK
    return kept and (line["kind"] not in RESTARTED or line["counted_after"] <= AGAIN)


class Watch:
    """Looks on from outside: how many rounds were completed meanwhile, and the longest time without one."""

    def __init__(self, field: Field) -> None:
        self.field, self.rounds, self.longest = field, 0, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        last, since = self.field.round, time.monotonic()
        while not self._over.wait(0.05) and not self.field.done:
            now = self.field.round
            self.longest = max(self.longest, time.monotonic() - since)
            if now > last:
                self.rounds += now - last
                last, since = now, time.monotonic()
