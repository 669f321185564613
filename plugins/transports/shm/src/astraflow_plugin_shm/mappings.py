"""Mappings of the files that alternate, kept from version to version: touching pages again costs twice the hash."""

from __future__ import annotations

import mmap
import os

KEPT = 3


class Mappings:
    """Read-only mappings of files, by what they are and not by their names."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int, mmap.mmap]] = {}

    def of(self, descriptor: int) -> mmap.mmap:
        """A mapping of the whole open file; it stays the caller's until the next call."""
        self.prune()
        found = os.fstat(descriptor)
        key = (found.st_dev, found.st_ino)
        kept, mapping = self._known.pop(key, (-1, None))
        if mapping is None or len(mapping) != found.st_size:
            if mapping is not None:
                mapping.close()
                os.close(kept)
            # The descriptor of ours keeps the number of the file from being another's.
            kept = os.dup(descriptor)
            try:
                mapping = mmap.mmap(kept, 0, prot=mmap.PROT_READ)
            except BaseException:
                os.close(kept)
                raise
        self._known[key] = (kept, mapping)
        while len(self._known) > KEPT:
            self._drop(next(iter(self._known)))
        return mapping

    def prune(self) -> None:
        """Let go of files that have no name any longer, so that their memory is freed."""
        for key, (kept, _) in list(self._known.items()):
            if not os.fstat(kept).st_nlink:
                self._drop(key)

    def close(self) -> None:
        """Let go of all."""
        for key in list(self._known):
            self._drop(key)

    def _drop(self, key: tuple[int, int]) -> None:
        kept, mapping = self._known.pop(key)
        mapping.close()
        os.close(kept)
