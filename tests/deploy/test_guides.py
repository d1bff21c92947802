"""The guides' commands exist, with the options they are given; so do those of the units and the compose file."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer.main

from pmfl.cli.commands import app

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guides" / "deploy").glob("*.md"))
COMMAND = typer.main.get_command(app)


def commands(text: str) -> Iterator[str]:
    for block in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL):
        for line in block.splitlines():
            for part in line.split("&&"):
                if part.strip().startswith("pmfl "):
                    yield part.strip()


def parse(line: str) -> None:
    """As the command line would, without running anything."""
    words = shlex.split(line.split("#")[0])[1:]
    command, context = COMMAND, click.Context(COMMAND)
    while isinstance(command, click.Group):
        found = command.get_command(context, words.pop(0))
        assert found is not None, line
        command, context = found, click.Context(found, parent=context)
    command.parse_args(context, words)


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_commands_of_the_guides(guide: Path) -> None:
    text = guide.read_text("utf-8")
    for line in commands(text):
        parse(line)
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (guide.parent / target).exists(), f"{guide.name} points at {target}"


def test_there_are_commands_to_look_at() -> None:
    assert sum(len(list(commands(guide.read_text("utf-8")))) for guide in GUIDES) >= 12


def test_commands_of_units_and_containers() -> None:
    units = [file.read_text("utf-8") for file in (ROOT / "deploy" / "systemd").iterdir()]
    starts = [
        line.partition("bin/")[2].replace("%i", "2") for unit in units for line in re.findall("ExecStart=.*", unit)
    ]
    compose = (ROOT / "deploy" / "compose.yaml").read_text("utf-8")
    starts += [f"pmfl {line}" for line in re.findall(r"command: (.*)", compose)]
    assert len(starts) == 6
    for line in starts:
        parse(line)
