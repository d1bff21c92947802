"""Whether official archives are the ones that were published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pmfl.world.sources.known import KNOWN


def compared(files: Iterable[Path | str]) -> dict[str, str]:
    """A note on whether files with the name of a published one are that one."""
    every = (remote for known in KNOWN.values() for remote in known.remotes)
    # idx files are packed anew by many, Debian among them: other bytes, same images
    published = {remote.file: remote.md5 for remote in every if not remote.file.endswith("-ubyte.gz")}
    is_same = {}
    for file in (Path(f) for f in files):
        if file.name in published:
            with file.open("rb") as content:
                is_same[file.name] = hashlib.file_digest(content, "md5").hexdigest() == published[file.name]
    if not is_same:
        return {}
    others = ", ".join(name for name, same in is_same.items() if not same)
    return {"files": f"not as published: {others}" if others else "as published (same MD5)"}
