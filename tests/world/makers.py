"""Files in every layout that is read, made from known pixels; tests compare what comes back with these."""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from pmfl.core.keys import Key

Array = npt.NDArray[Any]


def pixels(n: int, side: int = 6, channels: int = 3, seed: int = 0) -> Array:
    """Random images, uint8 [n, side, side, channels]."""
    return Key.root(seed).numpy().integers(0, 256, (n, side, side, channels)).astype(np.uint8)


def labels(n: int, classes: int = 3) -> Array:
    """0, 1, …, classes - 1, 0, 1, …"""
    return np.arange(n) % classes


def png(image: Array, mode: str | None = None) -> bytes:
    """One image as PNG, in another Pillow mode if asked."""
    packed = io.BytesIO()
    squeezed = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    picture = Image.fromarray(np.ascontiguousarray(squeezed))
    (picture.convert(mode) if mode else picture).save(packed, "PNG")
    return packed.getvalue()


def raw_png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG that claims whatever it is told to."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def image_folder(root: Path, x: Array, y: Array, names: Sequence[str]) -> Path:
    """A folder per class; the image's number in its file name keeps the order within a class."""
    for i, (image, label) in enumerate(zip(x, y, strict=True)):
        folder = root / names[label]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i:05d}.png").write_bytes(png(image))
    return root


def parquet(path: Path, x: Iterable[Array | bytes], y: Iterable[Any], **more: Any) -> Path:
    """The hub's layout: `names` become ClassLabel metadata, other keywords become columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = more.pop("names", None)
    image = pa.array(
        [{"bytes": i if isinstance(i, bytes) else png(i), "path": f"{n}.png"} for n, i in enumerate(x)],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({"image": image, "label": pa.array(list(y)), **more})
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    if names is not None:
        features["label"] = {"names": list(names), "_type": "ClassLabel"}
    for name, column in more.items():
        dtype = {"string": "string", "large_string": "large_string"}.get(str(pa.array(column).type), "int64")
        features[name] = {"dtype": dtype, "_type": "Value"}
    features.setdefault("label", {"dtype": "int64", "_type": "Value"})
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata(metadata), path)
    return path


def old_pickle(content: Mapping[str, Any]) -> bytes:
    """A dict as Python 2 pickled it (protocol 2, byte strings), which is what the official CIFAR files are."""

    def text(value: str | bytes) -> bytes:
        data = value.encode() if isinstance(value, str) else value
        return b"U" + bytes([len(data)]) + data if len(data) < 256 else b"T" + struct.pack("<i", len(data)) + data

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def item(value: Any) -> bytes:
        if isinstance(value, np.ndarray):
            head = b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85U\x01b\x87Rq\x04(K\x01"
            kind: bytes = b"cnumpy\ndtype\nq\x05U\x02" + value.dtype.str[1:].encode() + b"K\x00K\x01\x87Rq\x06"
            state = b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            shape = b"(" + b"".join(map(number, value.shape)) + b"t"
            content: bytes = value.tobytes()
            return head + shape + kind + state + b"\x89" + text(content) + b"tb"
        if isinstance(value, list):
            return b"]q\x07(" + b"".join(map(item, value)) + b"e"
        return number(value) if isinstance(value, int) else text(value)

    return b"\x80\x02}q\x01(" + b"".join(text(key) + item(value) for key, value in content.items()) + b"u."


def flat(x: Array) -> Array:
    """Images as CIFAR's rows of 3,072 bytes: all red, then all green, then all blue."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2).reshape(len(x), -1))


def tar_gz(path: Path, members: Mapping[str, bytes]) -> Path:
    """A packed archive of files."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def cifar10_members(x: Array, y: Array, x_test: Array, y_test: Array) -> dict[str, bytes]:
    """The files of CIFAR-10's archive, train in five parts."""
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    parts = {
        f"data_batch_{i + 1}": {"data": flat(xs), "labels": ys.tolist(), "batch_label": f"part {i + 1}"}
        for i, (xs, ys) in enumerate(zip(np.array_split(x, 5), np.array_split(y, 5), strict=True))
    }
    parts["test_batch"] = {"data": flat(x_test), "labels": y_test.tolist(), "batch_label": "test"}
    parts["batches.meta"] = {"label_names": names, "num_vis": 3072}
    return {f"cifar-10-batches-py/{name}": old_pickle(part) for name, part in parts.items()}


def cifar100_members(x: Array, y: Array, x_test: Array, y_test: Array) -> dict[str, bytes]:
    """The files of CIFAR-100's archive; the coarse label of class c is c // 5."""

    def part(xs: Array, ys: Array) -> bytes:
        return old_pickle({"data": flat(xs), "fine_labels": ys.tolist(), "coarse_labels": (ys // 5).tolist()})

    meta = {
        "fine_label_names": [f"fine {i}" for i in range(100)],
        "coarse_label_names": [f"coarse {i}" for i in range(20)],
    }
    members = {"train": part(x, y), "test": part(x_test, y_test), "meta": old_pickle(meta)}
    return {f"cifar-100-python/{name}": content for name, content in members.items()}


def svhn_mat(path: Path, x: Array, y: Array) -> Path:
    """SVHN's format 2: images last, and label 10 for the digit 0."""
    from scipy.io import savemat

    content = {"X": x.transpose(1, 2, 3, 0), "y": np.where(y == 0, 10, y).astype(np.uint8)[:, None]}
    savemat(path, content, do_compression=True)
    return path


def idx(path: Path, array: Array) -> Path:
    """MNIST's format, packed if the name ends in .gz."""
    header = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def idx_folder(folder: Path, x: Array, y: Array, x_test: Array, y_test: Array, ending: str = ".gz") -> Path:
    """The four files."""
    for word, images, classes in (("train", x, y), ("t10k", x_test, y_test)):
        idx(folder / f"{word}-images-idx3-ubyte{ending}", images[..., 0])
        idx(folder / f"{word}-labels-idx1-ubyte{ending}", classes)
    return folder


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file below a folder: size, time and content."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
