from pathlib import Path

import pytest

from pmfl.deploy.serve import serve
from pmfl.study.run import Run
from pmfl.study.seal import model_sha256
from pmfl.study.spec import run_spec
from tests.deploy.fake import STUDY, Hand, Straight, deployment, node

METHODS = ["fedavg", "pmfl", "fedau", "mifa", "fedvarp", "moon", "fedhyper"]


def simulated(method: object, clients: int = 3) -> str:
    """The hash of the model that the local engine trains when everybody is always there."""
    given = {"method": method, "data": {"clients": clients}, "participation": {"pattern": "always"}, **STUDY}
    run = Run(run_spec(given))
    for _ in run:
        pass
    run.close()
    return model_sha256(run.w)


@pytest.mark.parametrize("method", METHODS)
def test_nodes_that_are_always_there_give_the_bits_of_the_local_engine(tmp_path: Path, method: str) -> None:
    made = deployment(tmp_path, method)
    link = Straight({k: node(made, k).answer for k in range(3)})
    summary = serve(made, link, clock=Hand())
    assert summary["model_sha256"] == simulated(method)
    assert summary["t"] == 10
    assert serve(made, link, clock=Hand()) == summary
