"""The server under attack: what its memory does, and whether rounds go on.

    python -m tests.deploy.siege OUT --seconds 120

Two honest nodes play. A third, whose key is registered, answers every ask with something that is not a reply to it
(tests/deploy/enemy.py). Meanwhile others send requests to the server's port: bodies of 50 times the model, with and
without a length, noise, the same signature again and again; some without a key, some with the third node's own.
OUT/siege.json says what came of it.
"""

from __future__ import annotations

import argparse
import base64
import datetime as dt
import itertools
import json
import os
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER

from pmfl.core.keys import Key
from pmfl.deploy.gate import as_flower_writes
from pmfl.deploy.keys import node_key
from pmfl.deploy.launch_check import preflight
from pmfl.deploy.settings import NodeFolder
from tests.deploy.enemy import ANSWERS, TIMES
from tests.deploy.field import Field
from tests.deploy.gauge import PARTS, Gauge

FLEET = ("push-messages", "pull-messages", "push-object", "activate-node", "send-node-heartbeat", "register-node")
PATHS = (
    *(f"/v1/fleet/{name}" for name in FLEET),
    "/v1/control/start-run",
    "/v1/runtime/acquire-task",
    "/docs",
    "/health",
)
PIECE = 1 << 18  # bytes of a body that are sent at a time
CALM = 20.0  # seconds before and after, whose memory is compared
ENEMY = 2  # the client that has turned


def signed(file: Path) -> dict[str, str]:
    """Headers as Flower's nodes make them."""
    public = as_flower_writes(node_key(file))
    key = serialization.load_ssh_private_key(file.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    stamp = dt.datetime.now(dt.UTC).isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(public).decode(),
        TIMESTAMP_HEADER: stamp,
        FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))).decode(),
    }


class Attackers:
    """Threads that send what nobody asked for, until told to end."""

    def __init__(self, field: Field, size: int, seed: int = 0) -> None:
        self.url, self.size, self.seed = f"https://{field.made.here}", size // PIECE * PIECE, seed
        self.trust = ssl.create_default_context(cafile=str(field.made.ca))
        self.over, self.seen, self.lock = threading.Event(), Counter[str](), threading.Lock()
        keyed = signed(NodeFolder.open(field.root, ENEMY).key)
        stranger = signed(field.root / "stranger.pem")
        self.kinds: dict[str, Mapping[str, str]] = {"without a key": {}, "unknown key": stranger, "turned node": keyed}
        self.threads = [threading.Thread(target=self.work, args=(n, kind)) for n, kind in enumerate(self.kinds)]

    def __enter__(self) -> Attackers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join()

    def work(self, number: int, kind: str) -> None:
        """One attacker: large bodies and small noise in turn."""
        draw = Key.root(self.seed).fold(number).numpy()
        with httpx.Client(verify=self.trust, timeout=20.0) as client:
            while not self.over.wait(0.02):
                path = PATHS[int(draw.integers(len(PATHS)))]
                large, told = draw.random() < 0.2, draw.random() < 0.5
                headers = {**self.kinds[kind], "content-type": "application/protobuf"}
                if large and told:
                    headers["content-length"] = str(self.size)
                body = self.large() if large else draw.bytes(int(draw.integers(1 << 14)))
                try:
                    answer = str(client.post(self.url + path, headers=headers, content=body).status_code)
                except httpx.TransportError:  # it was refused, and the rest of the body not taken
                    answer = "closed"
                with self.lock:
                    self.seen[f"{kind}, {'large' if large else 'noise'}: {answer}"] += 1

    def large(self) -> Iterator[bytes]:
        """A body of 50 times the model."""
        for _ in range(self.size // PIECE):
            yield bytes(PIECE)


def start_enemy(field: Field) -> None:
    """The third node, as it is now."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (field.root / "enemy.out").open("ab") as out:
        command = [sys.executable, "-m", "tests.deploy.enemy", str(field.root), str(ENEMY)]
        one = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
    field.started[f"node{ENEMY}"] = one


def siege(root: Path, seconds: float, hidden: int) -> dict[str, Any]:
    """One, and what came of it."""
    study = ("training.model.name=mlp", f"training.model.hidden={hidden}", "training.rounds=100000")
    loads = [os.getloadavg()[0]]
    with Field(root, 3, *study, "evaluation.every=1000", deadline=15.0) as field:
        measured = preflight(root)
        if field.until(lambda: field.round >= 3, 300.0) is None:
            raise SystemExit(f"the run of {root} did not begin")
        field.started[f"node{ENEMY}"].kill()
        field.started[f"node{ENEMY}"].wait()
        gauges = [Gauge(field.made) for _ in range(3)]
        rounds = [field.round]
        watch(field, gauges[0], CALM)
        rounds.append(field.round)
        before = [field.replies(k) for k in range(3)]
        start_enemy(field)
        with Attackers(field, TIMES * measured["model_bytes"]) as attackers:
            watch(field, gauges[1], seconds)
        loads.append(os.getloadavg()[0])
        rounds.append(field.round)
        status = field.status
        field.started[f"node{ENEMY}"].send_signal(signal.SIGTERM)
        watch(field, gauges[2], CALM)
        rounds.append(field.round)
        after = [field.replies(k) for k in range(3)]
        log = field.root / "nodes" / str(ENEMY) / "enemy.log"
        given = Counter(line.partition("\t")[0] for line in log.read_text("utf-8").splitlines())
        restarts = field.server_known.get("restarts", {})
    return {
        "seconds": seconds,
        "model_megabytes": round(measured["model_bytes"] / 2**20, 2),
        "body_megabytes": round(TIMES * measured["model_bytes"] / 2**20, 1),
        "limit_megabytes": measured["body_limit"] / 2**20,
        "requests": dict(sorted(attackers.seen.items())),
        "answers_of_the_turned_node": {name: given[name] for name in ANSWERS},
        "refused_by_reason": status["refused"],
        "counted_of_honest": [after[k] - before[k] for k in range(2)],
        "counted_of_turned": after[ENEMY] - before[ENEMY],
        "rounds_before_during_after": [b - a for a, b in itertools.pairwise(rounds)],
        "restarts_of_the_server": restarts,
        "memory": {
            part: {
                "before": round(statistics.median(gauges[0].of(part)), 1),
                "most_during": round(max(gauges[1].of(part)), 1),
                "most_in_first_half": round(max(halves(gauges[1].of(part))[0]), 1),
                "after": round(statistics.median(gauges[2].of(part)), 1),
            }
            for part in (*PARTS, "database")
        },
        "load": round(max(loads), 1),
    }


def halves(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """The first and the second of them."""
    return values[: len(values) // 2], values[len(values) // 2 :]


def watch(field: Field, gauge: Gauge, seconds: float) -> None:
    """Sample the memory for a while."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        gauge.look(round=field.round)
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--hidden", type=int, default=3000)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        found = siege(Path(folder), given.seconds, given.hidden)
    (given.out / "siege.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
