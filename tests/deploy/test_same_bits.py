"""Through real processes, keys and disks: the model that a simulation on one machine gives, to the last bit."""

from pathlib import Path

import pytest

from pmfl.study.run import Run
from pmfl.study.seal import model_sha256
from pmfl.study.spec import run_spec
from pmfl.study.store import Store
from tests.deploy.field import Field

STUDY = {
    "training": {
        "rounds": 6,
        "iterations": 3,
        "batch_size": 8,
        "client_lr": 0.1,
        "model": {"name": "mlp", "hidden": 8},
    },
    "evaluation": {"every": 6},
}
CHANGES = (
    "training.rounds=6",
    "training.iterations=3",
    "training.batch_size=8",
    "training.model.hidden=8",
    "evaluation.every=6",
)
NODES = 2


def simulated(method: str) -> str:
    given = {"method": method, "data": {"clients": NODES}, "participation": {"pattern": "always"}, **STUDY}
    run = Run(run_spec(given))
    for _ in run:
        pass
    run.close()
    return model_sha256(run.w)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pmfl", "mifa"])
def test_the_bits_of_the_local_engine_though_a_node_was_killed(tmp_path: Path, method: str) -> None:
    changes = (f"method={method}", "training.model.name=mlp", *CHANGES)
    field = Field(tmp_path, NODES, *changes, deadline=10.0, min_replies=NODES)
    with field:
        assert field.until(lambda: field.round >= 2, 120) is not None, field.status
        field.started["node1"].kill()  # every round needs both: it is waited for, with its memory
        field.started["node1"].wait()
        field.start_node(1)
        assert field.until(lambda: field.done, 150) is not None, field.status
    (row,) = Store(field.made.results).runs()
    assert row.model_sha256 == simulated(method)
    assert [client["replies"] for client in field.status["clients"]] == [6] * NODES
    assert [client["fresh"] for client in field.status["clients"]] == [0] * NODES
    assert field.disagreements() == []
