"""Packed folders (.tar, .tar.gz, .zip): unpacked into a scratch folder, after every member was looked at."""

from __future__ import annotations

import gzip
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path, PurePosixPath
from typing import IO

from pmfl.world.sources.progress import Progress
from pmfl.world.sources.raw import Options, Raw, Source, guard_size, refuse, visible

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".zip")
AGAIN = "get the archive again from where it came"


def find(path: Path, options: Options, name: str) -> Source | None:
    """An archive of anything that another reader knows as a folder."""
    if not path.is_file() or not path.name.lower().endswith(SUFFIXES):
        return None
    return Source("archive", path.parent, (path,), options, lambda scratch: _read(path, scratch, options, name))


def _read(path: Path, scratch: Path, options: Options, name: str) -> Raw:
    from pmfl.world.sources.finding import find as find_any

    if path.suffix.lower() == ".zip":
        _unzip(path, scratch)
    else:
        _untar(path, scratch)
    inside = visible(scratch)
    return find_any(inside[0] if len(inside) == 1 else scratch, options, name).read(scratch)


def each_member(path: Path, take: Callable[[str, IO[bytes]], None]) -> None:
    """Hand over the files of a tar archive; a link, a device or a name that leads out of it is refused."""
    packed, total = path.stat().st_size, 0
    try:
        with (
            Progress(f"unpack {path.name}", packed, size_in_bytes=True) as progress,
            path.open("rb") as raw,
            tarfile.open(fileobj=raw, mode="r:" if path.suffix == ".tar" else "r:gz") as archive,
        ):
            for member in archive:
                if not (member.isfile() or member.isdir()):
                    raise refuse(path, f"{member.name} is a link or a device", "unpack it and point at the folder")
                _check_name(path, member.name)
                total += member.size
                guard_size(path, packed, total)
                stream = archive.extractfile(member)
                if stream is not None:
                    take(member.name, stream)
                progress.advance(raw.tell() - progress.done)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise refuse(path, f"is not a whole tar archive: {error}", AGAIN) from None


def _check_name(path: Path, name: str) -> None:
    plain = PurePosixPath(name.replace("\\", "/"))
    if plain.is_absolute() or ".." in plain.parts or ":" in "".join(plain.parts[:1]):
        raise refuse(path, f"{name} would be written outside of the folder", "do not trust this archive")


def _untar(path: Path, scratch: Path) -> None:
    each_member(path, lambda name, stream: _write(stream, scratch / name))


def _unzip(path: Path, scratch: Path) -> None:
    try:
        with zipfile.ZipFile(path) as archive, ExitStack() as showing:
            total = sum(member.file_size for member in archive.infolist())
            guard_size(path, path.stat().st_size, total)
            progress = showing.enter_context(Progress(f"unpack {path.name}", total, size_in_bytes=True))
            for member in archive.infolist():
                progress.advance(member.file_size)
                _check_name(path, member.filename)
                if stat.S_ISLNK(member.external_attr >> 16):
                    raise refuse(path, f"{member.filename} is a link", "unpack it and point at the folder")
                if not member.is_dir():
                    with archive.open(member) as stream:
                        _write(stream, scratch / member.filename)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise refuse(path, f"is not a whole zip archive: {error}", AGAIN) from None


def _write(stream: IO[bytes], target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
