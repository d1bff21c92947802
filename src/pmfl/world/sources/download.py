"""Official archives from where their authors publish them, checked against the published hashes. Only on request."""

from __future__ import annotations

import logging
from pathlib import Path

from pmfl.errors import DataMissing
from pmfl.world.sources.known import Known
from pmfl.world.sources.progress import Progress


class _Bar(Progress):
    """What pooch expects of a progress bar."""

    def update(self, amount: int) -> None:
        self.advance(amount)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        self.__exit__(None, None, None)


def fetch(known: Known, folder: Path) -> None:
    """Bring the files of a known set into a folder; files that are there and whole are left alone."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)  # it would log every file; the bar says enough
    folder.mkdir(parents=True, exist_ok=True)
    for remote in known.remotes:
        try:
            pooch.retrieve(
                remote.url,
                known_hash=f"md5:{remote.md5}",
                fname=remote.file,
                path=folder,
                downloader=pooch.HTTPDownloader(
                    progressbar=_Bar(f"download {remote.file}", 0, size_in_bytes=True), chunk_size=1 << 16, timeout=60
                ),
            )
        except ValueError as error:  # pooch's word for a wrong hash; it has removed the file
            raise DataMissing(
                f"{remote.url}: is not the published file (its MD5 is not {remote.md5})",
                hint=f"try again; or get {remote.file} elsewhere and: pmfl data get {known.name} --from PATH",
                code="D102",
            ) from error
        except (requests.RequestException, OSError) as error:
            raise DataMissing(f"{remote.url}: {error}", hint=ways(known), code="D100") from error


def ways(known: Known) -> str:
    """The three ways to a known set."""
    lines = []
    if known.remotes:
        lines.append(f"download the official files   pmfl data get {known.name}")
    else:
        lines.append(f"get it from the hub           pmfl data get {known.name}   (needs: pip install 'pmfl[hub]')")
    lines.append(f"use a copy that you have      pmfl data get {known.name} --from PATH   ({known.copy})")
    if known.remotes:
        lines.append(
            f"get it from the hub           pmfl data get {known.name} --from hub:{known.hub}"
            "   (needs: pip install 'pmfl[hub]')"
        )
    else:
        repository = known.hub.partition(":")[0]
        lines.append(
            f"fetch it elsewhere, copy it   hf download {repository} --repo-type dataset --local-dir DIR"
            f" && pmfl data get {known.name} --from DIR"
        )
    return "any of these:\n" + "\n".join(f"  {i}. {line}" for i, line in enumerate(lines, 1))
