"""The files of `deploy/`: read as the programs that use them would, since those are not on every machine."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from pmfl.deploy.create import create
from tests.deploy.test_guides import parse

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
GUIDE = (ROOT / "docs" / "guides" / "deploy" / "server.md").read_text("utf-8")
COMPOSE = (ROOT / "deploy" / "compose.yaml").read_text("utf-8")


def services() -> dict[str, dict[str, Any]]:
    """What compose would start."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
    return found


def test_containers_start_commands_that_exist_with_folders_that_they_are_given() -> None:
    assert list(services()) == ["server", "node-0", "node-1", "node-2"]
    for name, service in services().items():
        words = service["command"].split()
        parse(f"pmfl {service['command']}")
        given = {mount.split(":")[1]: mount.split(":")[0] for mount in service["volumes"]}
        assert all(source.startswith("../deployment") for source in given.values())
        assert service["image"] == "pmfl"
        assert service["restart"] == "on-failure"
        if name == "server":
            assert words == ["deploy", "server", "/deployment"]
            assert given == {"/deployment": "../deployment"}
        else:
            k = words[words.index("--client") + 1]
            assert name == f"node-{k}"
            assert set(given) == {"/deployment/ca.pem", f"/deployment/nodes/{k}"}  # and no other node's key
            assert "../deployment/ca.pem:/deployment/ca.pem:ro" in service["volumes"]
            assert service["depends_on"] == ["server"]


def test_containers_find_each_other(tmp_path: Path) -> None:
    """By the command in the file's first lines, the server has the address that its service has, and its port."""
    line = re.search(r"pmfl (deploy init .*)", COMPOSE)
    assert line is not None
    parse(f"pmfl {line[1]}")
    assert "--address server --bind 0.0.0.0" in line[1]
    nodes = int(line[1].split("--nodes ")[1].split()[0])
    assert [f"node-{k}" for k in range(nodes)] == list(services())[1:]
    made = create(tmp_path, nodes, {"address": "server", "bind": "0.0.0.0"}, [])
    assert services()["server"]["ports"] == [f"{made.server.port}:{made.server.port}"]


def test_the_image_runs_pmfl_as_the_user_that_owns_the_folder() -> None:
    lines = dict(
        line.split(" ", 1) for line in (ROOT / "deploy" / "Dockerfile").read_text("utf-8").splitlines() if line
    )
    assert lines["ENTRYPOINT"] == '["pmfl"]'
    assert lines["USER"] == "pmfl"
    uid = re.search(r"--uid (\d+) pmfl", (ROOT / "deploy" / "Dockerfile").read_text("utf-8"))
    owner = re.search(r"chown (\d+) deployment", COMPOSE)
    assert uid is not None
    assert owner is not None
    assert uid[1] == owner[1]
    assert (ROOT / "constraints.txt").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_units(tmp_path: Path, unit: Path) -> None:
    """With a program in the place of ours that is surely there; the instance of a node is its number."""
    text = unit.read_text("utf-8")
    assert "/opt/pmfl/bin/pmfl" in text
    (tmp_path / unit.name).write_text(text.replace("/opt/pmfl/bin/pmfl", "/bin/true"))
    name = unit.name.replace("@.", "@2.")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_units_do_not_repeat_what_would_only_come_again(unit: Path) -> None:
    text = unit.read_text("utf-8")
    assert "RestartPreventExitStatus=2 3 4" in text
    assert "Restart=on-failure" in text


TAKES = {"stream": 0, "limit_conn_zone": 2, "server": 0, "listen": 1, "limit_conn": 2}
TAKES |= {"proxy_connect_timeout": 1, "proxy_timeout": 1, "proxy_pass": 1}


def test_the_proxy_of_the_guide_is_well_formed_and_limits_what_it_uses() -> None:
    """Every directive is one of nginx's module `stream`, with its number of words, and every block is closed."""
    found = re.search(r"```nginx\n(.*?)```", GUIDE, flags=re.DOTALL)
    assert found is not None
    text, depth, said = re.sub(r"#.*", "", found[1]), 0, dict[str, list[str]]()
    for words, end in re.findall(r"([^{};]*)([{};])", text):
        name, *rest = words.split() or [""]
        if end == "}":
            assert name == ""
            depth -= 1
        else:
            assert TAKES[name] == len(rest), words
            assert (end == "{") == (TAKES[name] == 0)
            depth += end == "{"
            said[name] = rest
    assert depth == 0
    assert said["limit_conn"][0] == said["limit_conn_zone"][1].removeprefix("zone=").split(":")[0]
    assert said["listen"] != [said["proxy_pass"][0].rpartition(":")[2]]
