"""`pmfl data` as a user types it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from pmfl.cli.data import app
from pmfl.errors import DataMissing, PmflError, SpecError
from pmfl.world import cache
from pmfl.world.sources import finding
from tests.world import makers

X, Y = makers.pixels(60), makers.labels(60)
NAMES = ("cat", "dog & co", "eel")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMFL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PMFL_DATA", raising=False)
    monkeypatch.setattr(finding, "SYSTEM", ())
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return makers.image_folder(tmp_path / "pets", X, Y, NAMES)


def pmfl_data(*arguments: str | int | Path) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def refused(*arguments: str | int | Path) -> PmflError:
    error = pmfl_data(*arguments).exception
    assert isinstance(error, PmflError)
    return error


def test_list_tells_what_is_here_and_how_to_get_the_rest(pets: Path, tmp_path: Path) -> None:
    pmfl_data("get", "pets", "--from", pets)
    np.savez(tmp_path / "cifar.npz", x=X, y=Y)
    pmfl_data("info", tmp_path / "cifar.npz")  # in the cache, without a name
    (tmp_path / "data").mkdir()
    makers.tar_gz(tmp_path / "data" / "cifar-100-python.tar.gz", {})
    (tmp_path / "data" / "cifar-10-batches-py").mkdir()
    result = pmfl_data("list")
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "part of scikit-learn" in lines["digits"]
    assert "missing: pmfl data get svhn" in lines["svhn"]
    assert "99,289 images of 32 x 32 x 3, 10 classes" in lines["svhn"]
    assert f"found in {tmp_path / 'data'}" in lines["cifar100"]
    assert "cannot be used" in lines["cifar10"]
    assert "lacks data_batch_1" in lines["cifar10"]
    assert "in the cache" in lines["pets"]
    assert "60 samples of 6 x 6 x 3, 3 classes" in lines["pets"]
    (unnamed,) = [key for key in cache.stored() if key != cache.names()["pets"]["key"]]
    assert "in the cache" in lines[unnamed[:12]]
    assert str(tmp_path / "cache") in result.stderr


def test_get_info_verify_clear(pets: Path, tmp_path: Path) -> None:
    got = pmfl_data("get", "pets", "--from", pets, "--size", 4)
    assert got.exit_code == 0
    assert "48 train, 12 test" in got.stdout
    assert "4 x 4 x 3 pixels" in got.stdout
    assert "licence" in got.stdout
    info = pmfl_data("info", "pets", "--to", tmp_path / "pets.html")
    assert re.search(r"dog & co +16 +4\n", info.stdout)
    assert "wrote" in info.stderr
    assert pmfl_data("verify").stdout == "pets: whole\n"
    assert pmfl_data("clear", "pets").exit_code == 1  # nobody said yes
    assert len(cache.stored()) == 1
    assert "removed pets" in pmfl_data("clear", "pets", "--yes").stderr
    assert cache.stored() == []
    pets.rename(tmp_path / "moved")
    assert isinstance(refused("info", "pets"), SpecError)


def test_info_of_a_path_that_has_no_name(pets: Path) -> None:
    assert "48 train, 12 test" in pmfl_data("info", pets).stdout
    assert isinstance(refused("info", pets.parent / "nothing"), SpecError)


def test_contact_sheet_shows_every_class_and_needs_no_network(pets: Path, tmp_path: Path) -> None:
    import base64
    import io

    from PIL import Image

    pmfl_data("info", pets, "--to", tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text()
    assert "dog &amp; co" in page
    assert "http" not in re.sub(r"base64,[^\"]+", "", page)
    strips = re.findall(r'base64,([^"]+)"', page)
    assert len(strips) == 3
    first = np.asarray(Image.open(io.BytesIO(base64.b64decode(strips[0]))))
    assert first.shape == (6, 12 * 7 - 1, 3)
    cats = {x.tobytes() for x, y in zip(X, Y, strict=True) if y == 0}
    assert first[:, :6].tobytes() in cats
    assert first[:, -6:].tobytes() in cats


def test_contact_sheet_of_users_of_grey_images_and_of_tables(tmp_path: Path) -> None:
    from pmfl.world.contact_sheet import MOST_CLASSES, contact_sheet
    from pmfl.world.datasets import from_arrays, load

    grey = makers.pixels(600, 40, 1)
    users = np.arange(600) % 7
    many = from_arrays(grey, np.arange(600) % 250, grey[:5], np.arange(5), users=users, name="<many>")
    page = contact_sheet(many)
    assert "&lt;many&gt;" in page
    assert "7; 85 to 86 train samples each, quartiles 86, 86, 86" in page
    assert f"and {250 - MOST_CLASSES} classes more" in page
    (tmp_path / "x.csv").write_text("a,b,kind\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(30)))
    page = contact_sheet(load("table", tmp_path / "x.csv"))
    assert "2 features" in page
    assert "<img" not in page


def test_get_of_what_needs_no_getting_and_of_what_cannot_be_got() -> None:
    assert "nothing to get" in pmfl_data("get", "digits").stderr
    assert "CC BY 4.0" in pmfl_data("info", "digits").stdout
    error = refused("get", "mine", "--from", "nowhere")
    assert (error.exit_code, error.code) == (3, "D100")
    assert refused("get", "mine").exit_code == 2


def test_verify_names_what_is_damaged(pets: Path) -> None:
    pmfl_data("get", "pets", "--from", pets)
    path = next((cache.root() / "arrays").glob("*/train_y.npy"))
    path.write_bytes(path.read_bytes()[:-8] + b"\1" * 8)
    result = pmfl_data("verify", "pets")
    assert isinstance(result.exception, DataMissing)
    assert str(path) in result.stdout
    assert f"pmfl data clear {path.parent.name}" in result.exception.hint
    assert "damaged" not in pmfl_data("list").stdout  # sizes are right
    path.unlink()
    assert "damaged: pmfl data clear" in pmfl_data("list").stdout
    assert pmfl_data("clear", path.parent.name[:12], "--yes").exit_code == 0
    assert pmfl_data("verify").stdout == ""


def test_clear_by_an_unknown_name(pets: Path) -> None:
    assert "no named data" in refused("clear", "pest", "--yes").hint
    pmfl_data("get", "pets", "--from", pets)
    assert "did you mean `pets`?" in refused("clear", "pest", "--yes").hint


def test_clear_downloads(tmp_path: Path) -> None:
    for name in ("svhn", "mnist"):
        cache.downloads(name).mkdir(parents=True)
    assert pmfl_data("clear", "svhn", "--downloads", "--yes").exit_code == 0
    assert not cache.downloads("svhn").exists()
    assert cache.downloads("mnist").exists()
    assert pmfl_data("clear", "--downloads", "--yes").exit_code == 0
    assert not cache.downloads("mnist").exists()


def test_help_is_quick_to_import() -> None:
    import subprocess
    import sys

    program = "import sys, pmfl.cli.data; print([m for m in ('numpy', 'torch', 'rich', 'PIL') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "torch" not in out
    assert "numpy" not in out
