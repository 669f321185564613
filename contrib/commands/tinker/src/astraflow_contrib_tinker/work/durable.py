"""Files that survive a power failure: each is on the disk before the name under which it counts."""

from __future__ import annotations

import os
from pathlib import Path


def flush(path: Path) -> None:
    """Return when a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_flushed(path: Path, content: str) -> None:
    """Replace a file atomically; after a power failure either the old or the new one exists."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(content, encoding="utf-8")
    flush(partial)
    partial.replace(path)
    flush(path.parent)


def flush_tree(folder: Path) -> None:
    """Return when all below a folder is on the disk, and the folder itself."""
    for path in folder.rglob("*"):
        flush(path)
    flush(folder)
