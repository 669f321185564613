"""A disk without room: a small file system that a test can fill to the last byte, or a bound on files."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["tmpfs", "ext4"]
FILLER = "filler"


class CannotMount(Exception):
    """This user, or this host, may not mount file systems; the text has the reason."""


@dataclass(frozen=True)
class SmallDisk:
    """The file system mounted at ``path``."""

    path: Path

    def fill(self) -> None:
        """Leave no byte for anybody."""
        with (self.path / FILLER).open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def free(self) -> None:
        """Give back what :meth:`fill` took."""
        (self.path / FILLER).unlink()


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process can grow beyond ``size`` bytes: what the kernel says then is handled as a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def small_disk(folder: Path, kind: Kind, megabytes: int = 16) -> Iterator[SmallDisk]:
    """A file system in ``folder``, which must be empty; :class:`CannotMount` if there may be none."""
    if sys.platform != "linux":
        raise CannotMount("file systems are mounted on Linux only")
    path = folder / "disk"
    path.mkdir()
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path))
    else:
        image = folder / "image"
        image.touch()
        os.truncate(image, megabytes << 20)
        _run("mkfs.ext4", "-q", "-m", "0", str(image))
        _run("mount", "-o", "loop", str(image), str(path))
    try:
        yield SmallDisk(path)
    finally:
        _run("umount", "--lazy", str(path))


def _run(*command: str) -> None:
    found = shutil.which(command[0], path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise CannotMount(f"there is no {command[0]}")
    done = subprocess.run(
        [found, *command[1:]], capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        raise CannotMount(f"{' '.join(command)}: {done.stderr.strip()}")
