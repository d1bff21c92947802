"""The published formats, written by the tests, are read back exactly."""

from __future__ import annotations

import gzip
import pickle  # noqa: TID251  # what other people write; never read with it here
from pathlib import Path

import numpy as np
import pytest

from pmfl.world.datasets import Dataset, load
from pmfl.world.sources import opcodes
from tests.world import makers

pytestmark = pytest.mark.usefixtures("own_cache")

X, X_TEST = makers.pixels(40, 32), makers.pixels(20, 32, seed=1)
Y, Y_TEST = makers.labels(40, 10), makers.labels(20, 10)[::-1].copy()


def same(data: Dataset, x: makers.Array, y: makers.Array, x_test: makers.Array, y_test: makers.Array) -> None:
    for split, pixels, labels in ((data.train, x, y), (data.test, x_test, y_test)):
        np.testing.assert_array_equal(split.x, pixels)
        np.testing.assert_array_equal(split.y, labels)
        assert split.x.dtype == np.uint8
        assert split.y.dtype == np.int64


class TestCifar10:
    def members(self) -> dict[str, bytes]:
        return makers.cifar10_members(X, Y, X_TEST, Y_TEST)

    def test_packed(self, tmp_path: Path) -> None:
        path = makers.tar_gz(tmp_path / "cifar-10-python.tar.gz", self.members())
        data = load("cifar10", path)
        same(data, X, Y, X_TEST, Y_TEST)
        assert data.labels[0] == "airplane"
        assert data.labels[9] == "truck"
        assert data.mean == (0.4914, 0.4822, 0.4465)
        assert data.std == (0.2023, 0.1994, 0.2010)
        assert data.augment == "crop-flip"
        assert data.notes["published"] == "50,000 train, 10,000 test"
        assert "Krizhevsky" in data.notes["licence"]
        assert data.notes["files"] == "not as published: cifar-10-python.tar.gz"

    @pytest.mark.parametrize("point_at", ["cifar-10-batches-py", "."])
    def test_unpacked(self, tmp_path: Path, point_at: str) -> None:
        for name, content in self.members().items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
        same(load("cifar10", tmp_path / point_at), X, Y, X_TEST, Y_TEST)

    def test_found_by_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        makers.tar_gz(tmp_path / "cifar-10-python.tar.gz", self.members())
        monkeypatch.setenv("PMFL_DATA", f"/nowhere:{tmp_path}")
        same(load("cifar10"), X, Y, X_TEST, Y_TEST)

    def test_of_two_archives_the_named_one(self, tmp_path: Path) -> None:
        makers.tar_gz(tmp_path / "cifar-10-python.tar.gz", self.members())
        (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"not looked at")
        same(load("cifar10", tmp_path), X, Y, X_TEST, Y_TEST)


class TestCifar100:
    @pytest.fixture
    def archive(self, tmp_path: Path) -> Path:
        members = makers.cifar100_members(self.x, self.y, X_TEST, Y_TEST)
        return makers.tar_gz(tmp_path / "cifar-100-python.tar.gz", members)

    x, y = makers.pixels(100, 32, seed=2), np.arange(100)

    def test_fine_labels(self, archive: Path) -> None:
        data = load("cifar100", archive)
        same(data, self.x, self.y, X_TEST, Y_TEST)
        assert data.labels[7] == "fine 7"
        assert data.augment == "crop-flip"

    def test_coarse_labels_when_asked(self, archive: Path) -> None:
        data = load("coarse", archive, label="coarse_labels")
        same(data, self.x, self.y // 5, X_TEST, Y_TEST // 5)
        assert data.classes == 20


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_pickled_by_any_python(protocol: int) -> None:
    content = {
        b"data": makers.pixels(2, 4)[..., 0],
        "labels": [0, 300, 70_000],
        "none": None,
        "yes": True,
        "at": (1, 2),
    }
    read = opcodes.load(pickle.dumps(content, protocol), "x")
    np.testing.assert_array_equal(read.pop(b"data"), content.pop(b"data"))
    assert read == content


class TestSvhn:
    def test_pair(self, tmp_path: Path) -> None:
        makers.svhn_mat(tmp_path / "train_32x32.mat", X, Y)
        makers.svhn_mat(tmp_path / "test_32x32.mat", X_TEST, Y_TEST)
        data = load("svhn", tmp_path / "train_32x32.mat")
        same(data, X, Y, X_TEST, Y_TEST)
        assert data.labels == tuple("0123456789")
        assert (data.mean, data.std) == ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970))
        assert data.augment == "crop"
        same(load("svhn", tmp_path), X, Y, X_TEST, Y_TEST)

    def test_train_alone_gives_a_fifth_to_test(self, tmp_path: Path) -> None:
        x, y = makers.pixels(100, 32), makers.labels(100, 10)
        data = load("svhn", makers.svhn_mat(tmp_path / "train_32x32.mat", x, y))
        assert np.bincount(data.test.y).tolist() == [2] * 10
        assert np.bincount(data.train.y).tolist() == [8] * 10
        assert "keyed fifth" in data.notes["test split"]


class TestIdx:
    x, x_test = makers.pixels(40, 28, 1), makers.pixels(20, 28, 1, seed=1)

    @pytest.mark.parametrize("ending", ["", ".gz"])
    @pytest.mark.parametrize(("name", "label"), [("fashion", "T-shirt/top"), ("mnist", "0")])
    def test_four_files(self, tmp_path: Path, ending: str, name: str, label: str) -> None:
        makers.idx_folder(tmp_path, self.x, Y, self.x_test, Y_TEST, ending)
        data = load(name, tmp_path)
        same(data, self.x, Y, self.x_test, Y_TEST)
        assert data.labels[0] == label
        assert (data.mean, data.std, data.augment) == ((0.1307,), (0.3081,), "none")

    def test_one_of_them_finds_the_others(self, tmp_path: Path) -> None:
        makers.idx_folder(tmp_path, self.x, Y, self.x_test, Y_TEST)
        same(load("mnist", tmp_path / "t10k-labels-idx1-ubyte.gz"), self.x, Y, self.x_test, Y_TEST)

    def test_dotted_names_and_torchvisions_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        raw = makers.idx_folder(tmp_path / "MNIST/raw", self.x, Y, self.x_test, Y_TEST, "")
        for file in raw.iterdir():
            file.rename(file.with_name(file.name.replace("-idx", ".idx")))
        monkeypatch.setenv("PMFL_DATA", str(tmp_path))
        same(load("mnist"), self.x, Y, self.x_test, Y_TEST)

    def test_two_gzip_members_are_one_file(self, tmp_path: Path) -> None:
        makers.idx_folder(tmp_path, self.x, Y, self.x_test, Y_TEST)
        path = tmp_path / "train-labels-idx1-ubyte.gz"
        whole = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(whole[:20]) + gzip.compress(whole[20:]))
        same(load("mnist", tmp_path), self.x, Y, self.x_test, Y_TEST)


class TestCinic10:
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        for split, x, y in (("train", X, Y), ("valid", X, Y), ("test", X_TEST, Y_TEST)):
            makers.image_folder(tmp_path / "CINIC-10" / split, x, y, self.names)
        (tmp_path / "CINIC-10" / "README.md").write_text("hello")
        return tmp_path / "CINIC-10"

    def check(self, data: Dataset) -> None:
        order, order_test = np.argsort(Y, kind="stable"), np.argsort(Y_TEST, kind="stable")
        same(data, X[order], Y[order], X_TEST[order_test], Y_TEST[order_test])
        assert data.labels == self.names
        assert data.notes["left out"] == "valid"
        assert data.std == (0.2421, 0.2383, 0.2587)

    def test_tree(self, tree: Path) -> None:
        self.check(load("cinic10", tree))

    @pytest.mark.parametrize("packed", ["CINIC-10.tar.gz", "cinic.tar", "cinic.zip", "packed-as-dot.tgz"])
    def test_packed_tree(self, tree: Path, packed: str) -> None:
        import shutil
        import tarfile

        path = tree.parent / packed
        if packed.endswith(".zip"):
            shutil.make_archive(str(path.with_suffix("")), "zip", tree.parent, "CINIC-10")
        else:
            with tarfile.open(path, "w:gz" if packed.endswith("gz") else "w:") as archive:
                archive.add(tree, "." if "dot" in packed else "CINIC-10")
        self.check(load("cinic10", path))
