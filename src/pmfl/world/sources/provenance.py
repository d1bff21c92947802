"""Whether official archives are the ones that were published."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from pmfl.world.sources.known import KNOWN


def compared(files: Iterable[Path | str]) -> dict[str, str]:
    """A note on whether files with the name of a published one are that one."""
    published: dict[str, set[str]] = {}
    for remote in (remote for known in KNOWN.values() for remote in known.remotes):
        if not remote.file.endswith("-ubyte.gz"):  # packed anew by many, Debian among them: other bytes, same images
            published.setdefault(remote.file, set()).add(remote.md5)
    said = {}
    for file in (Path(f) for f in files):
        if file.name in published:
            with file.open("rb") as content:
                is_same = hashlib.file_digest(content, "md5").hexdigest() in published[file.name]
            said[file.name] = is_same
    if not said:
        return {}
    others = ", ".join(name for name, is_same in said.items() if not is_same)
    return {"files": f"not as published: {others}" if others else "as published (same MD5)"}
