import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pmfl.deploy.create import create
from pmfl.deploy.keys import public_key
from pmfl.deploy.settings import Deployment, NodeData, NodeFolder
from pmfl.deploy.supervise_node import point
from pmfl.deploy.supervise_node import refuse_open as refuse_open_node
from pmfl.deploy.supervise_server import refuse_open
from pmfl.errors import SpecError


def files(root: Path) -> dict[str, bytes]:
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def test_a_folder_from_nothing(tmp_path: Path) -> None:
    made = create(tmp_path, 2, {"address": "fl.example.org", "bind": "0.0.0.0"}, ["training.rounds=7"])
    assert Deployment.open(tmp_path) == made
    assert made.spec.training.rounds == 7
    assert (made.spec.method.name, made.spec.data.clients) == ("pmfl", 2)
    assert set(files(tmp_path)) == {
        *("ca.pem", "deploy.toml", "server/ca-key.pem", "server/certificate.pem", "server/key.pem"),
        *(f"nodes/{k}/{name}" for k in (0, 1) for name in ("key.pem", "node.toml")),
    }
    for client in made.clients:
        node = NodeFolder.open(tmp_path, client.id)
        assert client.key == public_key(node.key)
        assert node.settings.server == "fl.example.org:8000"
        assert stat.S_IMODE(node.key.stat().st_mode) == 0o600
    assert stat.S_IMODE(made.key.stat().st_mode) == 0o600


def test_again_adds_what_is_missing_and_changes_what_is_asked(tmp_path: Path) -> None:
    create(tmp_path, 1, {}, [])
    node = NodeFolder.open(tmp_path, 0)
    NodeFolder(tmp_path, node.settings.model_copy(update={"data": NodeData(path="/data")})).write()
    before = files(tmp_path)
    made = create(tmp_path, 3, {"port": 9000}, ["method=fedavg"])
    after = files(tmp_path)
    kept = ("ca.pem", "server/ca-key.pem", "server/key.pem", "server/certificate.pem", "nodes/0/key.pem")
    assert all(after[name] == before[name] for name in kept)
    assert [client.id for client in made.clients] == [0, 1, 2]
    assert made.spec.method.name == "fedavg"
    settings = NodeFolder.open(tmp_path, 0).settings
    assert (settings.server, settings.data.path) == ("127.0.0.1:9000", "/data")
    again = create(tmp_path, None, {}, [])
    assert again == made


def test_three_nodes_unless_said_otherwise(tmp_path: Path) -> None:
    assert len(create(tmp_path, None, {}, []).clients) == 3


def test_clients_are_never_taken_away(tmp_path: Path) -> None:
    create(tmp_path, 2, {}, [])
    with pytest.raises(SpecError, match="has 2 already"):
        create(tmp_path, 1, {}, [])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("training.round=3", "unknown key"),
        ("training.rounds", "expected key=value"),
        ("seed=1,2", "one value is expected"),
        ("method=fedsomething", "there is no method"),
    ],
)
def test_a_wrong_study_is_refused_before_anything_is_written(tmp_path: Path, change: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        create(tmp_path, 1, {}, [change])
    assert not (tmp_path / "deploy.toml").exists()


def test_insecure_has_no_keys_and_stays_on_this_machine(tmp_path: Path) -> None:
    made = create(tmp_path / "a", 1, {"insecure": True}, [])
    assert set(files(tmp_path / "a")) == {"deploy.toml", "nodes/0/node.toml"}
    assert made.clients[0].key == ""
    refuse_open(made)
    refuse_open_node(NodeFolder.open(tmp_path / "a", 0))
    with pytest.raises(ValidationError, match="this machine only"):
        create(tmp_path / "b", 1, {"insecure": True, "bind": "0.0.0.0"}, [])


def test_an_insecure_supervisor_refuses_other_machines_whatever_the_folder_says(tmp_path: Path) -> None:
    made = create(tmp_path, 1, {"insecure": True}, [])
    open_server: Any = made.server.model_copy(update={"bind": "0.0.0.0"})
    with pytest.raises(SpecError, match=r"insecure, and bound to 0\.0\.0\.0"):
        refuse_open(Deployment(tmp_path, made.study, open_server, made.clients))
    node = NodeFolder.open(tmp_path, 0)
    far = NodeFolder(tmp_path, node.settings.model_copy(update={"server": "fl.example.org:8000"}))
    with pytest.raises(SpecError, match=r"the server is fl\.example\.org"):
        refuse_open_node(far)


def test_a_node_is_pointed_at_its_own_samples(tmp_path: Path) -> None:
    create(tmp_path / "d", 1, {}, [])
    samples = tmp_path / "samples"
    samples.mkdir()
    assert point(tmp_path / "d", 0, None).settings.data == NodeData()
    assert point(tmp_path / "d", 0, str(samples)).settings.data == NodeData(path=str(samples))
    assert NodeFolder.open(tmp_path / "d", 0).settings.data.path == str(samples)
    assert point(tmp_path / "d", 0, "svhn").settings.data == NodeData(source="svhn")
    assert point(tmp_path / "d", 0, "svhn").settings.data == NodeData(source="svhn")


def test_a_client_gets_another_key_when_its_own_is_deleted(tmp_path: Path) -> None:
    """So a node that has turned is shut out: the gate knows the keys of deploy.toml alone."""
    before = create(tmp_path, 2, {}, [])
    (tmp_path / "nodes" / "1" / "key.pem").unlink()
    after = create(tmp_path, None, {}, [])
    assert after.clients[0] == before.clients[0]
    assert after.clients[1].key != before.clients[1].key
    assert Deployment.open(tmp_path).clients == after.clients
