from pathlib import Path

import pytest

from pmfl.deploy.settings import (
    ClientEntry,
    Deployment,
    NodeData,
    NodeFolder,
    NodeSettings,
    ServerSettings,
    host_port,
    is_loopback,
)
from pmfl.errors import SpecError


def deployment(root: Path, **server: object) -> Deployment:
    clients = (ClientEntry(id=0, name="ward", key="ecdsa a"), ClientEntry(id=1, name="lab", key="ecdsa b"))
    study = {"method": {"name": "pmfl", "cutoff": 20}, "training": {"rounds": 30}}
    return Deployment(root, study, ServerSettings.model_validate(server), clients)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = deployment(tmp_path, address="fl.example.org", port=9100, bind="0.0.0.0", deadline=5.5)
    made.write()
    assert Deployment.open(tmp_path) == made


def test_a_node_folder_is_read_as_written(tmp_path: Path) -> None:
    settings = NodeSettings(client=3, server="fl.example.org:9100", data=NodeData(path="/data", options={"size": 32}))
    made = NodeFolder(tmp_path, settings)
    made.write()
    assert NodeFolder.open(tmp_path, 3) == made
    assert {made.key.parent, made.memory.parent, made.sent_log.parent} == {tmp_path / "nodes" / "3"}
    assert made.ca == deployment(tmp_path).ca


def test_addresses(tmp_path: Path) -> None:
    made = deployment(tmp_path, address="fl.example.org", port=9100, bind="0.0.0.0")
    assert (made.superlink, made.here) == ("fl.example.org:9100", "127.0.0.1:9100")
    assert host_port("::1", 80) == "[::1]:80"
    assert [host for host in ("127.3.0.1", "::1", "localhost", "0.0.0.0", "example.org") if is_loopback(host)] == [
        "127.3.0.1",
        "::1",
        "localhost",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[server]\ninsecure = true\nbind = '0.0.0.0'", "this machine only"),
        ("[server]\nport = 0", "server.port = 0"),
        ("[server]\ndeadlin = 3", "server.deadlin = 3"),
        ("[[clients]]\nid = 1\nname = 'a'", "ids should count from 0"),
        ("[[clients]]\nid=0\nname='a'\nkey='k'\n[[clients]]\nid=1\nname='b'\nkey='k'", "two clients have the same key"),
        ("[server", "deploy.toml"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "deploy.toml").write_text(text)
    with pytest.raises(SpecError, match=says) as caught:
        Deployment.open(tmp_path)
    assert caught.value.hint


def test_folders_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no .*deploy\.toml"):
        Deployment.open(tmp_path)
    with pytest.raises(SpecError, match=r"there is no .*node\.toml") as caught:
        NodeFolder.open(tmp_path, 2)
    assert "nodes/2" in caught.value.hint
    (tmp_path / "deploy.toml").mkdir()
    with pytest.raises(SpecError, match="cannot be read"):
        Deployment.open(tmp_path)
