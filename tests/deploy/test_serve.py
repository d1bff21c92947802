from pathlib import Path

import pytest
import torch

from pmfl.deploy.serve import LiveRun, serve
from pmfl.engines.remote import Terms
from pmfl.engines.wire import decode
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


@pytest.mark.parametrize("method", ["mifa", "fedvarp"])
def test_what_a_client_forgot_is_taken_back(tmp_path: Path, method: str) -> None:
    """A client that lost its memory sends its whole update: without the server's ledger the old one would stay."""
    made = deployment(tmp_path, method)
    nodes = {k: node(made, k) for k in range(3)}

    def forgetful(data: bytes) -> bytes:
        if decode(data, 1 << 26).words.get("t") in (4, 7):
            for file in nodes[1].folder.memory.glob("*.safetensors"):
                file.unlink()
        return nodes[1].answer(data)

    link = Straight({0: nodes[0].answer, 1: forgetful, 2: nodes[2].answer})
    run = LiveRun(made.spec, link=link, terms=Terms(1.0, 3), clock=Hand())
    for _ in run:
        pass
    given = {"method": method, "data": {"clients": 3}, "participation": {"pattern": "always"}, **STUDY}
    plain = Run(run_spec(given))
    for _ in plain:
        pass
    assert run.engine.tally.fresh.tolist() == [0, 2, 0]
    assert torch.allclose(run.w, plain.w, atol=1e-5)
    assert torch.allclose(run.state.server.server, plain.state.server.server, atol=1e-5)
