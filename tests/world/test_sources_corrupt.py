"""Damaged, hostile and mistaken inputs: each is refused by name, says what to do, and leaves the cache as it was."""

from __future__ import annotations

import gzip
import io
import os
import stat
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pmfl.errors import DataMissing
from pmfl.world.datasets import load
from tests.world import makers

X, Y = makers.pixels(30), makers.labels(30)
X32, Y10 = makers.pixels(20, 32), makers.labels(20, 10)
NAMES = ("cat", "dog", "eel")
Case = Callable[[Path], tuple[Path, str]]  # folder -> what to load, and the name that the message must contain
CASES: dict[str, tuple[Case, str, dict[str, Any]]] = {}


def case(expected: str, **options: Any) -> Callable[[Case], Case]:
    """Register a case: what the message must say beside the file's name."""

    def register(make: Case) -> Case:
        CASES[make.__name__] = (make, expected, options)
        return make

    return register


def pets(folder: Path, **spoilt: bytes) -> tuple[Path, str]:
    """A good image folder in which one file is replaced: cat/00003.png, or as named."""
    makers.image_folder(folder / "pets", X, Y, NAMES)
    ((name, content),) = spoilt.items()
    file = folder / "pets" / "cat" / f"00003.{name}"
    (folder / "pets" / "cat" / "00003.png").unlink()
    file.write_bytes(content)
    return folder / "pets", str(file)


def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
    packed = io.BytesIO()
    image.save(packed, kind, **how)
    return packed.getvalue()


GOOD = makers.png(X[0])

# ------------------------------------------------------------------------------------------------ images


@case("cannot be decoded")
def truncated_png(folder: Path) -> tuple[Path, str]:
    return pets(folder, png=GOOD[:-40])


@case("cannot be decoded")
def png_with_flipped_bits(folder: Path) -> tuple[Path, str]:
    return pets(folder, png=GOOD[:45] + bytes(b ^ 255 for b in GOOD[45:60]) + GOOD[60:])


@case("is not an image")
def empty_png(folder: Path) -> tuple[Path, str]:
    return pets(folder, png=b"")


@case("is not an image")
def text_called_png(folder: Path) -> tuple[Path, str]:
    return pets(folder, png=b"<html>404</html>")


@case("cannot be decoded")
def truncated_jpeg(folder: Path) -> tuple[Path, str]:
    return pets(folder, jpg=saved(Image.fromarray(np.tile(X[0], (8, 8, 1))), "JPEG")[:-200])


@case("is 9 x 5 pixels, the images before it are 6 x 6")
def mixed_sizes(folder: Path) -> tuple[Path, str]:
    return pets(folder, png=makers.png(np.zeros((5, 9, 3), np.uint8)))


@case("transparent")
def transparent_png(folder: Path) -> tuple[Path, str]:
    return pets(folder, png=makers.png(np.dstack([X[0], X[0][..., :1]])))


@case("transparent")
def palette_with_a_transparent_colour(folder: Path) -> tuple[Path, str]:
    image = Image.fromarray(X[0]).convert("P")
    return pets(folder, png=saved(image, "PNG", transparency=image.getpixel((0, 0))))


@case("16 bits")
def grey_png_of_16_bits(folder: Path) -> tuple[Path, str]:
    return pets(folder, png=saved(Image.fromarray(np.full((6, 6), 700, np.uint16)), "PNG"))


@case("16 bits")
def rgb_png_of_16_bits(folder: Path) -> tuple[Path, str]:
    return pets(folder, png=makers.raw_png(6, 6, 16, 2, (b"\0" + b"\1\2" * 18) * 6))


@case("CMYK")
def cmyk_jpeg(folder: Path) -> tuple[Path, str]:
    return pets(folder, jpg=saved(Image.fromarray(X[0]).convert("CMYK"), "JPEG"))


@case("animation of 2 frames")
def animated_gif(folder: Path) -> tuple[Path, str]:
    frames = [Image.fromarray(x) for x in X[:2]]
    return pets(folder, gif=saved(frames[0], "GIF", save_all=True, append_images=frames[1:]))


@case("bomb")
def decompression_bomb(folder: Path) -> tuple[Path, str]:
    return pets(folder, png=makers.raw_png(50_000, 50_000, 8, 2, b"\0"))


@case("bomb: 8500 x 8500 pixels")
def decompression_bomb_below_pillows_own_limit(folder: Path) -> tuple[Path, str]:
    return pets(folder, png=makers.raw_png(8500, 8500, 8, 2, b"\0"))


# ------------------------------------------------------------------------------------------------ folders


@case("empty class")
def empty_class(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder, X, Y, NAMES)
    (folder / "fox").mkdir()
    return folder, str(folder / "fox")


@case("is a folder inside of a class")
def folder_inside_of_a_class(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder, X, Y, NAMES)
    (folder / "cat" / "more").mkdir()
    return folder, str(folder / "cat" / "more")


@case("is not an image")
def text_inside_of_a_class(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder, X, Y, NAMES)
    (folder / "cat" / "labels.txt").write_text("?")
    return folder, str(folder / "cat" / "labels.txt")


@case("link out of its folder")
def link_to_a_file_outside(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder / "pets", X, Y, NAMES)
    (folder / "secret.png").write_bytes(GOOD)
    (folder / "pets" / "cat" / "x.png").symlink_to(folder / "secret.png")
    return folder / "pets", str(folder / "pets" / "cat" / "x.png")


@case("cannot be read: No such file or directory")
def link_to_nothing(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder / "pets", X, Y, NAMES)
    (folder / "pets" / "cat" / "x.png").symlink_to(folder / "pets" / "cat" / "gone.png")
    return folder / "pets", str(folder / "pets" / "cat" / "x.png")


@case("")  # in words that depend on the version of Python
def link_to_itself(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder / "pets", X, Y, NAMES)
    (folder / "pets" / "cat" / "x.png").symlink_to(folder / "pets" / "cat" / "x.png")
    return folder / "pets", str(folder / "pets" / "cat" / "x.png")


@case("is neither a file nor a folder")
def pipe_among_images(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder, X, Y, NAMES)
    os.mkfifo(folder / "cat" / "x.png")
    return folder, str(folder / "cat" / "x.png")


@case("is neither a file nor a folder")
def pipe(folder: Path) -> tuple[Path, str]:
    os.mkfifo(folder / "x.csv")
    return folder / "x.csv", str(folder / "x.csv")


@case("link out of its folder")
def link_to_a_folder_outside(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder / "pets", X, Y, NAMES)
    makers.image_folder(folder / "other", X, Y, NAMES)
    (folder / "pets" / "fox").symlink_to(folder / "other" / "cat")
    return folder / "pets", str(folder / "pets" / "fox")


@case('have no training sample: 3 ("fox")')
def class_without_training_samples(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder / "train", X, Y, NAMES)
    makers.image_folder(folder / "test", X, makers.labels(30, 4), (*NAMES, "fox"))
    return folder, str(folder / "train")


@case("less than 5 samples of every class")
def too_few_for_a_test_split(folder: Path) -> tuple[Path, str]:
    return makers.image_folder(folder / "pets", X[:12], Y[:12], NAMES), str(folder / "pets")


@case("test samples are [8, 8, 3], train samples [6, 6, 3]")
def splits_of_two_sizes(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder / "train", X, Y, NAMES)
    makers.image_folder(folder / "test", makers.pixels(30, 8), Y, NAMES)
    return folder, str(folder / "test")


@case('has no split "exam"', test="exam")
def split_that_is_not_there(folder: Path) -> tuple[Path, str]:
    return makers.image_folder(folder / "train", X, Y, NAMES).parent, str(folder)


@case("no data set in a layout that is known")
def folder_of_something_else(folder: Path) -> tuple[Path, str]:
    (folder / "notes.txt").write_text("hello")
    return folder, str(folder)


@case("no such file or folder")
def nothing_there(folder: Path) -> tuple[Path, str]:
    return folder / "nowhere", str(folder / "nowhere")


# ------------------------------------------------------------------------------------------------ Parquet


@case("cannot be read as Parquet")
def truncated_parquet(folder: Path) -> tuple[Path, str]:
    path = makers.parquet(folder / "x.parquet", X, Y)
    path.write_bytes(path.read_bytes()[:-100])
    return path, str(path)


@case("cannot be read as Parquet")
def text_called_parquet(folder: Path) -> tuple[Path, str]:
    (folder / "x.parquet").write_text("version https://git-lfs.github.com/spec/v1")
    return folder / "x.parquet", "x.parquet"


@case("is damaged")
def parquet_with_a_damaged_page(folder: Path) -> tuple[Path, str]:
    path = makers.parquet(folder / "x.parquet", X, Y)
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    return path, "x.parquet"


@case("row 3: label 7 is out of range (0 to 2)")
def label_out_of_range(folder: Path) -> tuple[Path, str]:
    return makers.parquet(folder / "x.parquet", X, np.where(np.arange(30) == 3, 7, Y), names=NAMES), "x.parquet"


@case("row 0: label -1 is out of range")
def unlabelled_test_split(folder: Path) -> tuple[Path, str]:
    makers.parquet(folder / "test.parquet", X, Y * 0 - 1, names=NAMES)
    return makers.parquet(folder / "train.parquet", X, Y, names=NAMES), "test.parquet"


@case('column "label" has missing values')
def missing_label(folder: Path) -> tuple[Path, str]:
    return makers.parquet(folder / "x.parquet", X, [None, *Y[1:].tolist()]), "x.parquet"


@case("holds no image")
def images_that_are_only_paths(folder: Path) -> tuple[Path, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    image = pa.array(
        [{"bytes": None, "path": "/etc/passwd"}] * 30, pa.struct({"bytes": pa.binary(), "path": pa.string()})
    )
    pq.write_table(pa.table({"image": image, "label": Y}), folder / "x.parquet")
    return folder / "x.parquet", "x.parquet row 0 (/etc/passwd)"


@case("no image column")
def parquet_of_numbers(folder: Path) -> tuple[Path, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": Y * 0.5, "label": Y}), folder / "x.parquet")
    return folder / "x.parquet", "x.parquet"


@case('label "fox" is not among the class names')
def word_that_is_no_class(folder: Path) -> tuple[Path, str]:
    return makers.parquet(folder / "x.parquet", X, ["fox", *(NAMES[y] for y in Y[1:])], names=NAMES), "x.parquet"


@case("labels are float64")
def parquet_with_fractions_as_labels(folder: Path) -> tuple[Path, str]:
    return makers.parquet(folder / "x.parquet", X, Y / 2), "x.parquet"


@case("which split to train on? It has test, val")
def no_split_to_train_on(folder: Path) -> tuple[Path, str]:
    makers.parquet(folder / "val.parquet", X, Y)
    return makers.parquet(folder / "test.parquet", X, Y).parent, str(folder)


@case("2 columns could be the image: image, image2")
def two_image_columns(folder: Path) -> tuple[Path, str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"image": [GOOD] * 30, "image2": [GOOD] * 30, "label": Y}), folder / "x.parquet")
    return folder / "x.parquet", "x.parquet"


@case('no column "lable" for label', label="lable")
def column_that_is_not_there(folder: Path) -> tuple[Path, str]:
    return makers.parquet(folder / "x.parquet", X, Y), "x.parquet"


@case("cannot be decoded")
def truncated_png_in_a_row(folder: Path) -> tuple[Path, str]:
    return makers.parquet(folder / "x.parquet", [*X[:17], GOOD[:-40], *X[18:]], Y), "x.parquet row 17 (17.png)"


@case("holds several sets: cars_train.parquet, pets_train.parquet")
def several_sets_in_one_folder(folder: Path) -> tuple[Path, str]:
    makers.parquet(folder / "cars_train.parquet", X, Y)
    return makers.parquet(folder / "pets_train.parquet", X, Y).parent, str(folder)


@case("which the first file has")
def other_layout_in_the_test_file(folder: Path) -> tuple[Path, str]:
    import pyarrow.parquet as pq

    path = makers.parquet(folder / "test.parquet", X, Y)
    pq.write_table(pq.read_table(path).rename_columns(["image", "kind"]), path)
    return makers.parquet(folder / "train.parquet", X, Y), "test.parquet"


@case("only one class")
def one_class(folder: Path) -> tuple[Path, str]:
    return makers.parquet(folder / "x.parquet", X, Y * 0), "x.parquet"


@case("1000 classes for 30 training samples")
def column_of_numbers_instead_of_labels(folder: Path) -> tuple[Path, str]:
    return makers.parquet(folder / "x.parquet", X, np.arange(30) + 970), "x.parquet"


# ------------------------------------------------------------------------------------------------ CIFAR archives


def cifar(folder: Path, **changed: bytes | None) -> tuple[Path, str]:
    """A good CIFAR-10 archive in which one member is replaced, or left out."""
    members = makers.cifar10_members(X32, Y10, X32, Y10)
    for name, content in changed.items():
        full = f"cifar-10-batches-py/{name}"
        members = {k: v for k, v in members.items() if k != full} | ({full: content} if content is not None else {})
    return makers.tar_gz(folder / "cifar-10-python.tar.gz", members), str(folder / "cifar-10-python.tar.gz")


def batch(**changed: Any) -> bytes:
    return makers.old_pickle({"data": makers.flat(X32[:4]), "labels": [0, 1, 2, 3]} | changed)


@case("is not a whole tar archive")
def truncated_tar(folder: Path) -> tuple[Path, str]:
    path, name = cifar(folder)
    path.write_bytes(path.read_bytes()[:-3000])
    return path, name


@case("is not a whole tar archive")
def html_called_tar(folder: Path) -> tuple[Path, str]:
    (folder / "cifar-10-python.tar.gz").write_text("<html>moved</html>")
    return folder / "cifar-10-python.tar.gz", "cifar-10-python.tar.gz"


@case("lacks data_batch_3")
def missing_batch(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_3=None)


@case("lacks data_batch_1")
def missing_batch_in_a_folder(folder: Path) -> tuple[Path, str]:
    (folder / "cifar-10-batches-py").mkdir()
    (folder / "cifar-10-batches-py" / "test_batch").write_bytes(batch())
    return folder / "cifar-10-batches-py", "cifar-10-batches-py"


def tar_with(folder: Path, name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tuple[Path, str]:
    path = folder / "cifar-10-python.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, target
        archive.addfile(member, io.BytesIO())
    return path, str(path)


@case("../../evil would be written outside")
def path_traversal_in_a_tar(folder: Path) -> tuple[Path, str]:
    return tar_with(folder, "../../evil")


@case("/etc/evil would be written outside")
def absolute_path_in_a_tar(folder: Path) -> tuple[Path, str]:
    return tar_with(folder, "/etc/evil")


@case("is a link or a device")
def symbolic_link_in_a_tar(folder: Path) -> tuple[Path, str]:
    return tar_with(folder, "data_batch_1", tarfile.SYMTYPE, "/etc/passwd")


@case("is a link or a device")
def hard_link_in_a_tar(folder: Path) -> tuple[Path, str]:
    return tar_with(folder, "data_batch_1", tarfile.LNKTYPE, "../../x")


@case("is a link or a device")
def device_in_a_tar(folder: Path) -> tuple[Path, str]:
    return tar_with(folder, "data_batch_1", tarfile.CHRTYPE)


@case("bomb")
def gzip_bomb(folder: Path) -> tuple[Path, str]:
    path = folder / "cifar-10-python.tar.gz"
    member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
    member.size = 1 << 40
    path.write_bytes(gzip.compress(member.tobuf() + bytes(1 << 16)))
    return path, str(path)


@case("asks Python to run posix.system: refused")
def pickle_that_runs_a_command(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=b"cposix\nsystem\n(S'touch /tmp/owned'\ntR.")


@case("asks Python to run builtins.eval: refused")
def pickle_that_names_its_function_on_the_stack(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.")


@case("uses the pickle operation INST")
def pickle_with_another_operation(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=b"(ios\nsystem\n.")


@case("is not a readable pickle")
def truncated_pickle(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=batch()[:-500])


@case("is not a readable pickle")
def pickle_without_a_stack(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=b"\x80\x02R.")


@case("not a byte array")
def pickled_array_of_floats(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=batch(data=np.zeros((4, 3072))))


@case("an array of u1")
def pickled_array_by_column(folder: Path) -> tuple[Path, str]:
    by_row, by_column = b"Rq\x06(K\x03U\x01|", b"\x89T"
    content = batch()
    assert content.count(by_row) == content.count(by_column) == 1
    return cifar(folder, data_batch_2=content.replace(by_column, b"\x88T"))


@case("holds an object that is not a byte array")
def pickled_array_of_another_kind(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=b"\x80\x02cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R.")


@case("sets the state of an object that is not an array")
def pickled_state_of_something_else(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=b"\x80\x02}K\x01b.")


@case("not an array of 3,072 bytes per image")
def images_of_another_size(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=batch(data=np.zeros((4, 100), np.uint8)))


@case("not one whole number per image")
def fewer_labels_than_images(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=batch(labels=[1, 2]))


@case("has no `labels`")
def batch_without_labels(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=makers.old_pickle({"data": makers.flat(X32[:4])}))


@case("label 12 is out of range (0 to 9)")
def cifar_label_out_of_range(folder: Path) -> tuple[Path, str]:
    return cifar(folder, data_batch_2=batch(labels=[1, 12, 2, 3]))


@case("holds both CIFAR-10 and CIFAR-100")
def two_archives_in_one_folder(folder: Path) -> tuple[Path, str]:
    cifar(folder)
    (folder / "cifar-100-python.tar.gz").write_bytes(b"")
    return folder, str(folder)


# ------------------------------------------------------------------------------------------------ zip


def zip_with(folder: Path, name: str, content: bytes, mode: int = 0) -> tuple[Path, str]:
    with zipfile.ZipFile(folder / "pets.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        member = zipfile.ZipInfo(name)
        member.compress_type = zipfile.ZIP_DEFLATED
        member.external_attr = mode << 16
        archive.writestr(member, content)
    return folder / "pets.zip", str(folder / "pets.zip")


@case("would be written outside")
def path_traversal_in_a_zip(folder: Path) -> tuple[Path, str]:
    return zip_with(folder, "cat/../../../evil.png", GOOD)


@case("would be written outside")
def windows_path_in_a_zip(folder: Path) -> tuple[Path, str]:
    return zip_with(folder, "..\\evil.png", GOOD)


@case("is a link")
def link_in_a_zip(folder: Path) -> tuple[Path, str]:
    return zip_with(folder, "cat/1.png", b"/etc/passwd", stat.S_IFLNK | 0o777)


@case("bomb")
def zip_bomb(folder: Path) -> tuple[Path, str]:
    return zip_with(folder, "cat/1.png", bytes(80 << 20))


@case("is not a whole zip archive")
def truncated_zip(folder: Path) -> tuple[Path, str]:
    path, name = zip_with(folder, "cat/1.png", GOOD)
    path.write_bytes(path.read_bytes()[:-20])
    return path, name


@case("cannot be decoded")
def truncated_png_in_a_zip(folder: Path) -> tuple[Path, str]:
    path = folder / "pets.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for i, (x, y) in enumerate(zip(X, Y, strict=True)):
            archive.writestr(f"pets/{NAMES[y]}/{i}.png", GOOD[:-40] if i == 4 else makers.png(x))
    return path, f"{path}: pets/dog/4.png"


# ------------------------------------------------------------------------------------------------ SVHN's .mat


@case("not X and y")
def mat_without_images(folder: Path) -> tuple[Path, str]:
    from scipy.io import savemat

    savemat(folder / "train_32x32.mat", {"digitStruct": np.zeros(3)})
    return folder / "train_32x32.mat", "train_32x32.mat"


@case("label 11 is out of range: labels are 1 to 10")
def mat_with_a_wrong_label(folder: Path) -> tuple[Path, str]:
    path = makers.svhn_mat(folder / "train_32x32.mat", X32, np.where(np.arange(20) == 5, 11, Y10))
    return path, str(path)


@case("is not a whole MATLAB file")
def mat_with_damaged_content(folder: Path) -> tuple[Path, str]:
    path = makers.svhn_mat(folder / "train_32x32.mat", X32, Y10)
    content = path.read_bytes()
    path.write_bytes(content[:5000] + bytes(2000) + content[7000:])
    return path, str(path)


@case("holds X, not X and y")
def truncated_mat(folder: Path) -> tuple[Path, str]:
    path = makers.svhn_mat(folder / "train_32x32.mat", X32, Y10)
    path.write_bytes(path.read_bytes()[:-100])
    return path, str(path)


@case("is not a whole MATLAB file")
def text_called_mat(folder: Path) -> tuple[Path, str]:
    (folder / "train_32x32.mat").write_text("<html>moved</html>" * 20)
    return folder / "train_32x32.mat", "train_32x32.mat"


@case("MATLAB 7.3")
def mat_in_hdf5(folder: Path) -> tuple[Path, str]:
    (folder / "train_32x32.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(400))
    return folder / "train_32x32.mat", "train_32x32.mat"


@case("not (32, 32, 3, n)")
def mat_of_grey_images(folder: Path) -> tuple[Path, str]:
    path = makers.svhn_mat(folder / "train_32x32.mat", makers.pixels(20, 32, 1), Y10)
    return path, str(path)


@case("X is float64")
def mat_of_floats(folder: Path) -> tuple[Path, str]:
    path = makers.svhn_mat(folder / "train_32x32.mat", X32 / 255, Y10)
    return path, str(path)


# ------------------------------------------------------------------------------------------------ idx


def digits(folder: Path) -> Path:
    grey = makers.pixels(20, 28, 1)
    return makers.idx_folder(folder, grey, Y10, grey, Y10)


@case("does not begin as an idx file")
def wrong_idx_magic(folder: Path) -> tuple[Path, str]:
    path = digits(folder) / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x0d\3" + bytes(100)))
    return folder, str(path)


@case("is not a whole gzip file")
def truncated_idx(folder: Path) -> tuple[Path, str]:
    path = digits(folder) / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-50])
    return folder, str(path)


@case("is not a whole gzip file")
def idx_with_a_wrong_checksum(folder: Path) -> tuple[Path, str]:
    path = digits(folder) / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    return folder, str(path)


@case("holds more than the 20 bytes its header says")
def idx_with_bytes_to_spare(folder: Path) -> tuple[Path, str]:
    path = digits(folder) / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()) + b"more"))
    return folder, str(path)


@case("holds 12 of the 20 bytes its header says")
def idx_with_bytes_missing(folder: Path) -> tuple[Path, str]:
    path = digits(folder) / "train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-8]))
    return folder, str(path)


@case("has 10 labels for the 20 images")
def fewer_idx_labels(folder: Path) -> tuple[Path, str]:
    path = makers.idx(digits(folder) / "train-labels-idx1-ubyte.gz", Y10[:10])
    return folder, str(path)


@case("bomb")
def idx_that_claims_a_terabyte(folder: Path) -> tuple[Path, str]:
    path = digits(folder) / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\3" + struct.pack(">III", 1 << 30, 32, 32) + bytes(99)))
    return folder, str(path)


@case("has no file of labels beside it")
def idx_without_labels(folder: Path) -> tuple[Path, str]:
    (digits(folder) / "train-labels-idx1-ubyte.gz").unlink()
    return folder, "train-images-idx3-ubyte.gz"


# ------------------------------------------------------------------------------------------------ numpy


def npz(folder: Path, **arrays: Any) -> tuple[Path, str]:
    np.savez_compressed(folder / "set.npz", **({"x_train": X, "y_train": Y} | arrays))
    return folder / "set.npz", str(folder / "set.npz")


@case("cannot be read: Object arrays cannot be loaded")
def npz_with_objects(folder: Path) -> tuple[Path, str]:
    return npz(folder, y_train=np.array([{"run": "me"}] * 30, dtype=object))


@case("holds x_train, y_train, x_test: no y_test")
def npz_without_labels(folder: Path) -> tuple[Path, str]:
    return npz(folder, x_test=X)


@case("images are float64")
def npz_of_float_images(folder: Path) -> tuple[Path, str]:
    return npz(folder, x_train=X / 255)


@case("channels come second")
def npz_with_channels_first(folder: Path) -> tuple[Path, str]:
    return npz(folder, x_train=X.transpose(0, 3, 1, 2))


@case("row 4, feature 1 is NaN or infinite")
def npz_with_a_nan(folder: Path) -> tuple[Path, str]:
    x = np.ones((30, 3))
    x[4, 1] = np.nan
    return npz(folder, x_train=x)


@case("1 of 4 classes have no training sample: 1")
def npz_with_a_gap_in_the_labels(folder: Path) -> tuple[Path, str]:
    return npz(folder, y_train=np.where(Y == 1, 3, Y))


@case("samples are float64 (30,)")
def npz_with_one_number_per_sample(folder: Path) -> tuple[Path, str]:
    return npz(folder, x_train=np.ones(30))


@case("30 samples and 29 labels")
def npz_with_a_label_missing(folder: Path) -> tuple[Path, str]:
    return npz(folder, y_train=Y[1:])


@case("labels are float64")
def npz_with_float_labels(folder: Path) -> tuple[Path, str]:
    return npz(folder, y_train=Y * 1.0)


@case("samples are uint8 (30, 6, 6, 4)")
def npz_with_four_channels(folder: Path) -> tuple[Path, str]:
    return npz(folder, x_train=np.concatenate([X, X[..., :1]], axis=3))


@case("train and test differ in their features")
def npz_with_other_features_in_test(folder: Path) -> tuple[Path, str]:
    return npz(folder, x_train=np.ones((30, 3)), x_test=np.ones((30, 4)), y_test=Y)


@case("0 samples and 0 labels")
def npz_with_an_empty_test_split(folder: Path) -> tuple[Path, str]:
    return npz(folder, x_test=X[:0], y_test=Y[:0])


@case("bomb")
def npz_bomb(folder: Path) -> tuple[Path, str]:
    return npz(folder, x_train=np.zeros((3000, 32, 32, 30), np.uint8))


@case("is not a whole .npz file")
def truncated_npz(folder: Path) -> tuple[Path, str]:
    path, name = npz(folder)
    path.write_bytes(path.read_bytes()[:-100])
    return path, name


@case("cannot be read")
def npz_with_a_damaged_member(folder: Path) -> tuple[Path, str]:
    path, name = npz(folder)
    content = bytearray(path.read_bytes())
    content[200:300] = bytes(100)
    path.write_bytes(content)
    return path, name


@case("cannot be read: Array can't be memory-mapped: Python objects")
def npy_with_objects(folder: Path) -> tuple[Path, str]:
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", np.array([None] * 30, dtype=object))
    return folder, str(folder / "y.npy")


@case("cannot be read")
def truncated_npy(folder: Path) -> tuple[Path, str]:
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-10])
    return folder, str(folder / "x.npy")


@case("cannot be read")
def npy_with_an_open_bracket(folder: Path) -> tuple[Path, str]:
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)
    content = (folder / "x.npy").read_bytes()
    (folder / "x.npy").write_bytes(content.replace(b"6, 3), }", b"6,  3   "))
    return folder, str(folder / "x.npy")


@case("images are (6, 6), not 32", size=32)
def arrays_cannot_be_resized(folder: Path) -> tuple[Path, str]:
    return npz(folder)


# ------------------------------------------------------------------------------------------------ CSV


def table(folder: Path, rows: list[str], name: str = "x.csv", header: str = "a,b,kind") -> tuple[Path, str]:
    (folder / name).write_text("\n".join([header, *rows]) + "\n")
    return folder / name, str(folder / name)


ROWS = [f"{i},{i * i},{NAMES[i % 3]}" for i in range(30)]


@case('row 5: column "b" holds "many", not a number')
def text_in_a_number_column(folder: Path) -> tuple[Path, str]:
    return table(folder, [*ROWS[:4], "4,many,cat", *ROWS[5:]])


@case('row 5: column "b" is empty')
def empty_cell(folder: Path) -> tuple[Path, str]:
    return table(folder, [*ROWS[:4], "4,,cat", *ROWS[5:]])


@case('column "kind" has 1 missing values')
def missing_class(folder: Path) -> tuple[Path, str]:
    return table(folder, [*ROWS[:4], "4,4,", *ROWS[5:]])


@case("is not a table")
def ragged_rows(folder: Path) -> tuple[Path, str]:
    return table(folder, [*ROWS[:4], "4,4", *ROWS[5:]])


@case("is not a table")
def empty_csv(folder: Path) -> tuple[Path, str]:
    (folder / "x.csv").touch()
    return folder / "x.csv", "x.csv"


@case("is not a table")
def binary_called_csv(folder: Path) -> tuple[Path, str]:
    (folder / "x.csv").write_bytes(GOOD)
    return folder / "x.csv", "x.csv"


@case("has 30 rows of columns a, a, kind")
def two_columns_of_one_name(folder: Path) -> tuple[Path, str]:
    return table(folder, ROWS, header="a,a,kind")


@case("row 4, feature 1 is NaN or infinite")
def infinite_number(folder: Path) -> tuple[Path, str]:
    return table(folder, [*ROWS[:4], "4,inf,cat", *ROWS[5:]])


@case('no column "klass" for label', label="klass")
def csv_label_that_is_not_there(folder: Path) -> tuple[Path, str]:
    return table(folder, ROWS)


@case('no column "who" for user', user="who")
def csv_user_that_is_not_there(folder: Path) -> tuple[Path, str]:
    return table(folder, ROWS)


@case("holds fractions, not classes")
def regression_target(folder: Path) -> tuple[Path, str]:
    return table(folder, [f"{i},{i},{i / 7}" for i in range(30)])


@case("is a second train file, beside cars_train.csv")
def two_tables_to_train_on(folder: Path) -> tuple[Path, str]:
    table(folder, ROWS, "cars_train.csv")
    return table(folder, ROWS, "pets_train.csv")[0].parent, "pets_train.csv"


@case("has other columns than the train file")
def csv_test_file_of_another_layout(folder: Path) -> tuple[Path, str]:
    table(folder, ROWS, "x_train.csv")
    table(folder, ROWS, "x_test.csv", "a,c,kind")
    return folder / "x_train.csv", "x_test.csv"


# ------------------------------------------------------------------------------------------------ sites


@case("has float64 (3,)")
def sites_with_different_columns(folder: Path) -> tuple[Path, str]:
    table(folder, ROWS, "north.csv")
    return table(folder, [f"1,{row}" for row in ROWS], "south.csv", "z,a,b,kind")[0].parent, "south.csv"


@case("cannot be read, but its neighbours look like sites")
def something_else_among_sites(folder: Path) -> tuple[Path, str]:
    for site in ("north", "south"):
        makers.image_folder(folder / site, X, Y, NAMES)
    (folder / "papers" / "2020").mkdir(parents=True)
    return folder, str(folder / "papers")


@case('is a second site called "north"')
def two_sites_of_one_name(folder: Path) -> tuple[Path, str]:
    table(folder, ROWS, "north.csv")
    return table(folder, ROWS, "north.tsv")[0].parent, "north.tsv"


@case("some sites hold encoded images and some arrays")
def sites_of_images_and_of_arrays(folder: Path) -> tuple[Path, str]:
    makers.image_folder(folder / "north", X32, Y10, tuple("abcdefghij"))
    cifar_folder = folder / "south"
    cifar_folder.mkdir()
    cifar(cifar_folder)
    return folder, str(folder)


@case("some sites name their classes and some do not")
def sites_of_two_layouts(folder: Path) -> tuple[Path, str]:
    for site in ("north", "south"):
        (folder / site).mkdir()
    np.savez(folder / "north" / "set.npz", x=np.ones((30, 2)), y=Y)
    table(folder / "south", ROWS)
    return folder, str(folder)


# ------------------------------------------------------------------------------------------------ the test


@pytest.mark.parametrize("name", sorted(CASES))
def test_refused_by_name_and_the_cache_left_as_it_was(name: str, tmp_path: Path, own_cache: Path) -> None:
    make, expected, options = CASES[name]
    (tmp_path / "good").mkdir()
    np.savez(tmp_path / "good" / "set.npz", x=X, y=Y)
    load("good", tmp_path / "good")
    before = makers.snapshot(own_cache / "arrays")
    assert before
    (tmp_path / "bad").mkdir()
    path, named = make(tmp_path / "bad")
    with pytest.raises(DataMissing) as caught:
        load("bad", path, **options)
    error = caught.value
    assert error.exit_code == 3
    assert error.code in ("D100", "D101")
    assert named in error.message
    assert expected in error.message
    assert len(error.hint) > 10
    assert makers.snapshot(own_cache / "arrays") == before
    assert list((own_cache / "building").iterdir()) == []
    assert not (tmp_path / "evil").exists()
    assert not Path("/tmp/owned").exists()


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 40
