"""What a round costs when training costs nothing: a deployment of ours beside Flower's own FedAvg app, one after the
other on this machine.

    python -m tests.deploy.overhead --nodes 3 10 --rounds 10

Flower's app is as plain as can be: numpy alone, no evaluation, no keys, its processes with their own settings. Ours is
a deployment as `pmfl deploy init` makes it: certificates, keys, supervisors, checkpoints and acknowledged memories.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pmfl.deploy.processes import free_port
from tests.deploy.field import Field

SIZE = 50_000  # numbers in the model of both
PYPROJECT = """
[project]
name = "plain"
version = "1.0.0"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41"]
[tool.flwr.app]
publisher = "nobody"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "plain:server"
clientapp = "plain:client"
[tool.flwr.app.config]
rounds = 3
nodes = 2
size = 10
times = ""
"""
APP = """
import time
import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

server = ServerApp()
client = ClientApp()

@server.main()
def main(grid, context):
    asked = context.run_config
    n = int(asked["nodes"])
    def note(t, arrays):
        with open(asked["times"], "a") as stream:
            print(time.time(), file=stream)
        return MetricRecord({"t": t})
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
    start = ArrayRecord([np.zeros(int(asked["size"]), np.float32)])
    strategy.start(grid=grid, initial_arrays=start, num_rounds=int(asked["rounds"]), evaluate_fn=note)

@client.train()
def train(message, context):
    content = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})})
    return Message(content, reply_to=message)
"""


def flowers(nodes: int, rounds: int) -> list[float]:
    """Seconds of each round of Flower's FedAvg, without the first."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ended:
        root, port, times = Path(folder), free_port(), Path(folder) / "times"
        app, home = root / "app", root / "home"
        app.mkdir()
        home.mkdir()
        (app / "pyproject.toml").write_text(PYPROJECT)
        (app / "plain.py").write_text(APP)
        (app / "LICENSE").write_text("none")
        address = f"127.0.0.1:{port}"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{address}"\ninsecure = true\n'
        )
        quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
        here = Path(sys.executable).parent
        environment = {**os.environ, **quiet, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"}

        def start(*command: str) -> None:
            with (root / "log").open("ab") as log:
                one = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
            ended.callback(end, one)

        start("flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation")
        wait_for(port)
        for _ in range(nodes):
            start("flower-supernode", "--insecure", "--superlink", address, "--port", str(free_port()))
        config = f'rounds={rounds} nodes={nodes} size={SIZE} times="{times}"'
        subprocess.run(
            ["flwr", "run", str(app), "here", "--run-config", config], env=environment, check=True, capture_output=True
        )
        patience = time.monotonic() + 300 + 60 * rounds
        while len(found := times.read_text().split() if times.exists() else []) <= rounds:  # one before the first round
            if time.monotonic() > patience:
                raise TimeoutError((root / "log").read_text()[-3000:])
            time.sleep(0.5)
    return gaps([float(at) for at in found[1:]])


def ours(nodes: int, rounds: int) -> list[float]:
    """Seconds of each round of ours, without the first."""
    hidden = SIZE // (64 + 10)
    study = ("method=fedavg", f"training.rounds={rounds}", "training.iterations=1", "training.batch_size=1")
    model = ("training.model.name=mlp", f"training.model.hidden={hidden}", f"evaluation.every={rounds}")
    root = Path(tempfile.mkdtemp())
    ends = dict[int, float]()
    try:
        with Field(root, nodes, *study, *model, deadline=60.0, min_replies=nodes) as field:
            patience = time.monotonic() + 300 + 60 * rounds
            while field.round < rounds:
                ends.setdefault(field.round, time.time())
                if time.monotonic() > patience:
                    raise TimeoutError(str(field.status))
                time.sleep(0.02)
            ends[rounds] = time.time()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return gaps([ends[t] for t in sorted(ends) if t > 0])


def gaps(ends: list[float]) -> list[float]:
    """From the end of one round to the end of the next."""
    return [after - before for before, after in itertools.pairwise(ends)]


def wait_for(port: int) -> None:
    """Until somebody listens."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nobody listens on {port}")


def end(process: subprocess.Popen[bytes]) -> None:
    """With all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[3, 10])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=None, help="where overhead.json is put")
    given = parser.parse_args()
    found = []
    for nodes in given.nodes:
        for whose, measured in (("flower", flowers), ("pmfl", ours)):
            seconds = measured(nodes, given.rounds)
            line = {
                "whose": whose,
                "nodes": nodes,
                "rounds": len(seconds),
                "median_seconds": round(statistics.median(seconds), 2),
                "least": round(min(seconds), 2),
                "most": round(max(seconds), 2),
                "load": round(os.getloadavg()[0], 1),
            }
            found.append(line)
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "overhead.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
