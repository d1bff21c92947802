"""Data in people's own folders: Parquet, image folders, numpy files, CSV, sites."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pmfl.errors import DataMissing, SpecError
from pmfl.world.datasets import load
from tests.world import makers

pytestmark = pytest.mark.usefixtures("own_cache")

X, X_TEST = makers.pixels(30), makers.pixels(12, seed=1)
Y, Y_TEST = makers.labels(30), makers.labels(12)
NAMES = ("cat", "dog", "eel")


class TestParquet:
    def test_a_train_file_finds_its_test_file(self, tmp_path: Path) -> None:
        train = makers.parquet(tmp_path / "pets_train.parquet", X, Y, names=NAMES)
        makers.parquet(tmp_path / "pets_test.parquet", X_TEST, Y_TEST, names=NAMES)
        makers.parquet(tmp_path / "cars_test.parquet", X, Y)
        data = load("pets", train)
        np.testing.assert_array_equal(data.train.x, X)
        np.testing.assert_array_equal(data.test.x, X_TEST)
        np.testing.assert_array_equal(data.test.y, Y_TEST)
        assert data.labels == NAMES
        assert data.augment == "none"

    def test_statistics_are_those_of_train(self, tmp_path: Path) -> None:
        makers.parquet(tmp_path / "train.parquet", X, Y)
        makers.parquet(tmp_path / "test.parquet", X_TEST, Y_TEST)
        data = load("mine", tmp_path)
        np.testing.assert_allclose(data.mean, (X / 255).mean(axis=(0, 1, 2)), rtol=1e-12)
        np.testing.assert_allclose(data.std, (X / 255).std(axis=(0, 1, 2)), rtol=1e-9)

    def test_hub_snapshot_with_shards_and_a_validation_split(self, tmp_path: Path) -> None:
        folder = tmp_path / "data"
        makers.parquet(folder / "train-00000-of-00002.parquet", X[:20], Y[:20])
        makers.parquet(folder / "train-00001-of-00002.parquet", X[20:], Y[20:])
        makers.parquet(folder / "validation-00000-of-00001.parquet", X_TEST, Y_TEST)
        data = load("mine", tmp_path)
        np.testing.assert_array_equal(data.train.x, X)
        np.testing.assert_array_equal(data.test.x, X_TEST)
        assert data.notes["test split"] == 'the source\'s "validation" split'

    def test_of_several_sets_the_named_one(self, tmp_path: Path) -> None:
        for name, x, y in (("cifar100_slice", X, Y), ("pets", X[:15], Y[:15])):
            makers.parquet(tmp_path / f"{name}_train.parquet", x, y)
        data = load("pets", tmp_path)
        assert len(data.train) + len(data.test) == 15

    def test_columns_named_by_the_user(self, tmp_path: Path) -> None:
        path = makers.parquet(tmp_path / "x.parquet", X, Y, other=(Y + 1) % 3, who=[f"w{i % 4}" for i in range(30)])
        data = load("mine", path, label="other", user="who")
        whole = np.concatenate([data.train.y, data.test.y])
        assert np.bincount(whole).tolist() == [10, 10, 10]
        assert data.user_names == ("w0", "w1", "w2", "w3")
        assert data.train.users is not None
        assert set(data.train.users.tolist()) <= {0, 1, 2, 3}
        by_pixels = {x.tobytes(): i for i, x in enumerate(X)}
        for x, y, user in zip(data.train.x, data.train.y, data.train.users, strict=True):
            i = by_pixels[x.tobytes()]
            assert y == (Y[i] + 1) % 3
            assert user == i % 4

    def test_natural_users_are_found_by_their_usual_name(self, tmp_path: Path) -> None:
        path = makers.parquet(tmp_path / "x.parquet", X, Y, writer_id=[f"f{i % 5:04}" for i in range(30)])
        assert len(load("mine", path).user_names) == 5

    def test_words_as_labels(self, tmp_path: Path) -> None:
        path = makers.parquet(tmp_path / "x.parquet", X, [NAMES[y] for y in Y])
        assert load("mine", path).labels == NAMES

    def test_words_are_looked_up_among_the_names(self, tmp_path: Path) -> None:
        path = makers.parquet(tmp_path / "x.parquet", X, [NAMES[y] for y in Y], names=NAMES[::-1])
        data = load("mine", path)
        assert data.labels == NAMES[::-1]
        by_pixels = {x.tobytes(): NAMES[y] for x, y in zip(X, Y, strict=True)}
        assert [data.labels[y] for y in data.train.y] == [by_pixels[x.tobytes()] for x in data.train.x]

    def test_fine_labels_before_coarse_ones(self, tmp_path: Path) -> None:
        import json

        import pyarrow.parquet as pq

        path = makers.parquet(tmp_path / "x.parquet", X, Y, coarse_label=Y * 0)
        table = pq.read_table(path).rename_columns(["img", "fine_label", "coarse_label"])
        named = {"_type": "ClassLabel", "names": list(NAMES)}
        features = {"img": {"_type": "Image"}, "fine_label": named, "coarse_label": {**named, "names": ["all"]}}
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        pq.write_table(table.replace_schema_metadata(metadata), path)
        assert load("mine", path).labels == NAMES
        with pytest.raises(DataMissing, match="only one class"):
            load("mine", path, label="coarse_label")

    def test_binary_column_without_metadata(self, tmp_path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table({"png": [makers.png(x) for x in X], "target": Y})
        pq.write_table(table, tmp_path / "plain.parquet")
        assert load("mine", tmp_path / "plain.parquet").train.x.shape == (24, 6, 6, 3)


class TestFolders:
    def test_one_folder_per_class(self, tmp_path: Path) -> None:
        data = load("pets", makers.image_folder(tmp_path / "pets", X, Y, NAMES))
        assert data.labels == NAMES
        assert np.bincount(data.train.y).tolist() == [8, 8, 8]
        assert np.bincount(data.test.y).tolist() == [2, 2, 2]
        seen = {x.tobytes() for x in data.train.x} | {x.tobytes() for x in data.test.x}
        assert seen == {x.tobytes() for x in X}
        for split in (data.train, data.test):
            for x, y in zip(split.x, split.y, strict=True):
                assert Y[next(i for i in range(30) if (X[i] == x).all())] == y

    def test_the_keyed_share_depends_on_the_seed_only(self, tmp_path: Path) -> None:
        folder = makers.image_folder(tmp_path / "pets", X, Y, NAMES)
        one, two = load("pets", folder).test.x, load("other", folder).test.x
        np.testing.assert_array_equal(one, two)
        assert not np.array_equal(one, load("pets", folder, split_seed=1).test.x)

    def test_split_folders(self, tmp_path: Path) -> None:
        makers.image_folder(tmp_path / "train", X, Y, NAMES)
        makers.image_folder(tmp_path / "val", X_TEST, Y_TEST, NAMES)
        data = load("pets", tmp_path)
        assert (len(data.train), len(data.test)) == (30, 12)
        assert "val" in data.notes["test split"]

    def test_splits_named_by_the_user(self, tmp_path: Path) -> None:
        makers.image_folder(tmp_path / "2023", X, Y, NAMES)
        makers.image_folder(tmp_path / "2024", X_TEST, Y_TEST, NAMES)
        data = load("pets", tmp_path, train="2023", test="2024")
        assert (len(data.train), len(data.test)) == (30, 12)

    def test_classes_in_numeric_order_and_hidden_files_left_alone(self, tmp_path: Path) -> None:
        makers.image_folder(tmp_path, X, Y, ("2", "10", "1"))
        (tmp_path / "1" / ".DS_Store").write_bytes(b"x")
        (tmp_path / "Thumbs.db").write_bytes(b"x")
        assert load("pets", tmp_path).labels == ("1", "2", "10")

    def test_size_resizes(self, tmp_path: Path) -> None:
        folder = makers.image_folder(tmp_path / "pets", makers.pixels(30, 9), Y, NAMES)
        (folder / "cat" / "00000.png").write_bytes(makers.png(makers.pixels(1, 20)[0]))
        data = load("pets", folder, size=4)
        assert data.train.x.shape == (24, 4, 4, 3)
        assert data.train.x.std() > 20

    def test_a_link_within_the_folder_is_fine(self, tmp_path: Path) -> None:
        folder = makers.image_folder(tmp_path / "pets", X, Y, NAMES)
        (folder / "cat" / "again.png").symlink_to(folder / "cat" / "00000.png")
        data = load("pets", folder)
        assert len(data.train) + len(data.test) == 31

    @pytest.mark.parametrize("grey_split", ["train", "test"])
    def test_a_grey_split_beside_an_rgb_one(self, tmp_path: Path, grey_split: str) -> None:
        grey = makers.pixels(30, 6, 1)
        for split in ("train", "test"):
            makers.image_folder(tmp_path / split, grey if split == grey_split else X, Y, NAMES)
        data = load("pets", tmp_path)
        order = np.argsort(Y, kind="stable")
        repeated = data.train.x if grey_split == "train" else data.test.x
        np.testing.assert_array_equal(repeated, np.repeat(grey[order], 3, axis=3))


class TestArrays:
    @pytest.mark.parametrize(
        "names",
        [
            ("x_train", "y_train", "x_test", "y_test"),
            ("train_images", "train_labels", "test_images", "test_labels"),
            ("X_train", "Y_train", "X_val", "Y_val"),
        ],
    )
    @pytest.mark.parametrize("packed", [True, False])
    def test_names_in_use(self, tmp_path: Path, names: tuple[str, ...], packed: bool) -> None:
        arrays = dict(zip(names, (X, Y[:, None], X_TEST, Y_TEST), strict=True))
        if packed:
            np.savez_compressed(tmp_path / "set.npz", allow_pickle=False, **arrays)
        for name, array in {} if packed else arrays.items():
            np.save(tmp_path / f"{name}.npy", array)
        data = load("mine", tmp_path / ("set.npz" if packed else "."))
        np.testing.assert_array_equal(data.train.x, X)
        np.testing.assert_array_equal(data.train.y, Y)
        np.testing.assert_array_equal(data.test.x, X_TEST)
        assert data.labels == ("0", "1", "2")

    def test_one_pair_and_users(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "set.npz", x=X[..., 0], y=Y, users=np.arange(30) % 4 + 7)
        data = load("mine", tmp_path / "set.npz")
        assert data.train.x.shape == (24, 6, 6, 1)
        assert data.user_names == ("7", "8", "9", "10")
        assert data.train.users is not None
        by_pixels = {x[..., :1].tobytes(): i % 4 for i, x in enumerate(X)}
        assert [by_pixels[x.tobytes()] for x in data.train.x] == data.train.users.tolist()

    def test_a_pair_of_npy_files(self, tmp_path: Path) -> None:
        np.save(tmp_path / "x.npy", X)
        np.save(tmp_path / "y.npy", Y)
        assert len(load("mine", tmp_path / "x.npy").train) == 24

    def test_arrays_named_by_the_user(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "set.npz", left=X, right=X[::-1], mood=Y)
        data = load("mine", tmp_path / "set.npz", image="right", label="mood")
        assert {x.tobytes() for x in data.train.x} <= {x.tobytes() for x in X}
        with pytest.raises(DataMissing, match='no array "rigth"') as caught:
            load("mine", tmp_path / "set.npz", image="rigth", label="mood")
        assert "right" in caught.value.hint

    def test_features_are_standardised_by_train(self, tmp_path: Path) -> None:
        x = makers.pixels(30)[:, :, 0, 0] * 1.0
        np.savez(tmp_path / "set.npz", x_train=x, y_train=Y, x_test=x[:12] + 1000, y_test=Y_TEST)
        data = load("mine", tmp_path / "set.npz")
        assert data.train.x.dtype == np.float32
        np.testing.assert_allclose(data.train.x.mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(data.train.x.std(axis=0), 1, atol=1e-6)
        np.testing.assert_allclose(data.test.x, (x[:12] + 1000 - x.mean(axis=0)) / x.std(axis=0), rtol=1e-5)
        assert (data.mean, data.std) == ((0.0,), (1.0,))


class TestCsv:
    def rows(self, n: int = 30) -> list[str]:
        return [f"{i * 0.5},{i % 7},3,{NAMES[i % 3]}" for i in range(n)]

    def write(self, path: Path, rows: list[str], header: str = "a,b,constant,kind") -> Path:
        path.write_text("\n".join([header, *rows] if header else rows) + "\n")
        return path

    def test_the_last_column_is_the_label(self, tmp_path: Path) -> None:
        data = load("mine", self.write(tmp_path / "x.csv", self.rows()))
        assert data.labels == NAMES
        assert data.train.x.shape == (24, 3)
        np.testing.assert_allclose(data.train.x[:, :2].mean(axis=0), 0, atol=1e-6)
        assert not data.train.x[:, 2].any()  # a constant column
        assert not data.is_image

    def test_label_and_user_named(self, tmp_path: Path) -> None:
        data = load("mine", self.write(tmp_path / "x.csv", self.rows(70)), label="b", user="kind")
        assert data.labels == tuple("0123456")
        assert data.user_names == NAMES
        assert data.train.x.shape[1] == 2

    def test_a_column_called_label_comes_first(self, tmp_path: Path) -> None:
        data = load("mine", self.write(tmp_path / "x.csv", self.rows(70), "a,label,c,user"))
        assert data.classes == 7
        assert data.user_names == NAMES

    def test_without_header_and_with_semicolons(self, tmp_path: Path) -> None:
        rows = [f"{i};{i * i};{i % 2}.0" for i in range(20)]
        data = load("mine", self.write(tmp_path / "x.csv", rows, ""))
        assert data.labels == ("0", "1")
        assert len(data.train) + len(data.test) == 20

    def test_train_and_test_files(self, tmp_path: Path) -> None:
        train = self.write(tmp_path / "x_train.csv", self.rows())
        self.write(tmp_path / "x_test.csv", self.rows(9))
        for path in (train, tmp_path):
            data = load("mine", path)
            assert (len(data.train), len(data.test)) == (30, 9)
            np.testing.assert_allclose(data.test.x, data.train.x[:9])


class TestSites:
    def test_a_folder_per_site_of_image_folders(self, tmp_path: Path) -> None:
        makers.image_folder(tmp_path / "north", X[:18], Y[:18] % 2, NAMES)
        makers.image_folder(tmp_path / "south", X[18:], Y[18:], NAMES)
        data = load("hospitals", tmp_path)
        assert data.user_names == ("north", "south")
        assert data.labels == NAMES
        by_pixels = {x.tobytes(): int(i >= 18) for i, x in enumerate(X)}
        for split in (data.train, data.test):
            assert split.users is not None
            assert [by_pixels[x.tobytes()] for x in split.x] == split.users.tolist()
        assert "2 folders" in data.notes["sites"]

    def test_sites_with_their_own_test_splits(self, tmp_path: Path) -> None:
        for site, (x, y) in {"a": (X, Y), "b": (X_TEST, Y_TEST)}.items():
            makers.image_folder(tmp_path / site / "train", x, y, NAMES)
        makers.image_folder(tmp_path / "a" / "test", X_TEST, Y_TEST, NAMES)
        data = load("hospitals", tmp_path)
        assert (len(data.train), len(data.test)) == (42, 12)
        assert "not from b" in data.notes["test split"]

    @pytest.mark.parametrize("layout", ["files", "folders"])
    def test_tables_per_site(self, tmp_path: Path, layout: str) -> None:
        for site, kinds in (("x", ("cat", "dog")), ("y", ("dog", "eel"))):
            path = tmp_path / f"{site}.csv" if layout == "files" else tmp_path / site / "all.csv"
            path.parent.mkdir(exist_ok=True)
            path.write_text("a,kind\n" + "".join(f"{i},{kinds[i % 2]}\n" for i in range(10)))
        data = load("branches", tmp_path)
        assert data.labels == NAMES
        assert data.user_names == ("x", "y")
        assert np.bincount(np.concatenate([data.train.y, data.test.y])).tolist() == [5, 10, 5]

    def test_users_within_sites(self, tmp_path: Path) -> None:
        for site in ("x", "y"):
            np.savez(tmp_path / f"{site}.npz", x=X, y=Y, users=np.arange(30) % 2)
        data = load("branches", tmp_path)
        assert data.user_names == ("x/0", "x/1", "y/0", "y/1")

    def test_told_that_folders_are_not_sites(self, tmp_path: Path) -> None:
        makers.image_folder(tmp_path / "north", X, Y, NAMES)
        with pytest.raises(DataMissing, match="no data set in a layout"):
            load("hospitals", tmp_path, sites=False)
        assert len(load("hospitals", tmp_path, sites=True).user_names) == 1


class TestAsking:
    def test_unknown_option(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="no option `lable`") as caught:
            load("mine", tmp_path, lable="y")
        assert "label" in caught.value.hint

    def test_impossible_size(self, tmp_path: Path) -> None:
        with pytest.raises(SpecError, match="size = 0"):
            load("mine", tmp_path, size=0)

    def test_digits_need_nothing(self) -> None:
        assert load("digits").classes == 10
        with pytest.raises(SpecError, match="takes no options"):
            load("digits", size=4)
        with pytest.raises(SpecError, match="cannot be the name"):
            load("digits", "somewhere")

    @pytest.mark.parametrize("name", ["svhn", "cifar10", "cifar100", "cinic10", "fashion", "mnist", "femnist"])
    def test_a_known_set_that_is_not_here_says_three_ways(self, name: str) -> None:
        with pytest.raises(DataMissing, match=f"{name}: not on this machine") as caught:
            load(name)
        assert caught.value.exit_code == 3
        assert "1. " in caught.value.hint
        assert f"pmfl data get {name}\n" in caught.value.hint or f"pmfl data get {name} " in caught.value.hint
        assert f"pmfl data get {name} --from PATH" in caught.value.hint
        assert "3. " in caught.value.hint

    def test_a_name_nobody_knows(self) -> None:
        with pytest.raises(SpecError, match='"cifra10" is not a known set') as caught:
            load("cifra10")
        assert "did you mean `cifar10`?" in caught.value.hint
        assert "pmfl data get cifra10 --from PATH" in caught.value.hint

    def test_other_data_under_a_known_name(self, tmp_path: Path) -> None:
        makers.image_folder(tmp_path, X, Y, NAMES)
        with pytest.raises(DataMissing, match="are not svhn") as caught:
            load("svhn", tmp_path)
        assert "a name of its own" in caught.value.hint
