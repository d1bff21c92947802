"""Real processes on this machine, as an operator starts them: killed, watched, stopped, finished."""

import json
import signal
import ssl
from pathlib import Path

import httpx
import pytest
from safetensors.numpy import load_file

from pmfl.deploy.control import Control
from pmfl.deploy.overview import overview
from pmfl.deploy.result import write_result
from pmfl.deploy.stopping import running
from tests.deploy.field import Field, send

ROUNDS = 8
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a minute on an idle machine


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Field:
    """Two nodes; a node, the app and the supervisor are killed on the way; the run ends by itself."""
    field = Field(tmp_path_factory.mktemp("field"), 2, f"training.rounds={ROUNDS}", "evaluation.every=4", deadline=10.0)
    with field:
        assert field.until(lambda: field.round >= 1, 240) is not None, logs(field)
        field.started["node1"].kill()
        send(field.server_known["children"]["app"], signal.SIGKILL)
        field.started["node1"].wait()
        field.start_node(1)
        assert field.until(lambda: field.round >= 3, 240) is not None, logs(field)
        strangers(field)
        send(field.server_known["pid"], signal.SIGKILL)
        assert field.until(lambda: field.done, 400) is not None, logs(field)
        known = overview(field.root)
        assert {"node 0", "node 1"} <= set(known["supervisors"])
    return field


def strangers(field: Field) -> None:
    """Who has no key is not heard, and who has no secret cannot start programs."""
    url = f"https://{field.made.here}/v1"
    trust = ssl.create_default_context(cafile=str(field.made.ca))
    assert httpx.post(f"{url}/fleet/push-messages", content=b"x" * (1 << 20), verify=trust).status_code == 401
    assert httpx.post(f"{url}/control/start-run", verify=trust).status_code == 401
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"https://{field.made.here}/health")  # the deployment's own authority is nobody else's


def logs(field: Field) -> str:
    files = [*field.root.rglob("*.log"), *field.root.glob("*.out")]
    return "\n".join(f"{file}:\n{file.read_text()[-1500:]}" for file in files)


def test_a_run_that_was_broken_on_the_way_ends_by_itself(played: Field) -> None:
    assert played.started["server"].returncode == 0, logs(played)
    assert (played.round, played.status["state"]) == (ROUNDS, "done")
    assert played.server_known["state"] == "finished"
    assert played.disagreements() == []


def test_what_it_ends_with(played: Field) -> None:
    result = played.made.result
    assert {file.parent for file in write_result(played.made)} == {result}  # again, and in this process
    assert {file.name for file in result.iterdir()} == {"model.safetensors", "model.onnx", "MODEL_CARD.md"}
    assert load_file(result / "model.safetensors")
    card = (result / "MODEL_CARD.md").read_text()
    assert "# Model trained by pmfl on digits" in card
    assert f"| rounds | {ROUNDS} of {ROUNDS} |" in card
    rows = [line for line in card.splitlines() if line.startswith(("| 0 |", "| 1 |"))]
    assert [row.split("|")[2].strip() for row in rows] == ["node-0", "node-1"]
    replies = [client["replies"] for client in played.status["clients"]]
    assert [int(row.split("|")[3]) for row in rows] == replies


def test_a_run_that_diverges_ends_at_once_and_says_so(tmp_path: Path) -> None:
    study = ("method=fedavg", f"training.rounds={ROUNDS}", "training.client_lr=1e30")
    with Field(tmp_path, 1, *study, deadline=3.0) as field:
        assert field.until(lambda: field.done, 240) is not None, logs(field)
    assert field.started["server"].returncode == 4
    said = (tmp_path / "server.out").read_text()
    assert "error[N100]: diverged in round" in said
    assert "lower training.client_lr" in said
    assert overview(tmp_path)["state"] == "diverged"
    assert field.server_known["restarts"] == {}
    events = [json.loads(line)["what"] for line in (field.made.folder / "events.log").read_text().splitlines()]
    assert events.count("app began") == 1


def test_nothing_is_left_running(played: Field) -> None:
    assert running(played.root) == {}
    assert overview(played.root)["state"] == "done"
    events = [json.loads(line) for line in (played.made.folder / "events.log").read_text().splitlines()]
    assert events[-1]["what"] == "supervisor ended"
    assert sum(event["what"] == "supervisor began" for event in events) == 2
    with pytest.raises(httpx.HTTPError), Control(played.made) as control:
        control.stop_all()
