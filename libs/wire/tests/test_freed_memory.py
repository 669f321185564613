"""A process retains the memory that it frees: counted in page faults, which do not depend on the load of the
machine."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

HAS_MALLOPT = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt")
FAULTS = """
import mmap, resource, sys
from astraflow_wire.host.process import retain_freed_memory
if sys.argv[1] == "keep":
    retain_freed_memory()
def touch():
    held = [bytearray(3 << 20) for _ in range(8)]  # zeroed by us or by the system: every page is there
    for block in held:
        block[::mmap.PAGESIZE] = bytes([1]) * len(block[::mmap.PAGESIZE])
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    touch()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults * mmap.PAGESIZE / (4 * 8 * (3 << 20)))
"""


def share_faulted_in_again(*, keep: bool, **environment: str) -> float:
    """Of the memory that is allocated again after the first round."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    own.pop("GLIBC_TUNABLES", None)
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, "keep" if keep else "leave"],
        env=own | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return float(done.stdout)


@pytest.mark.skipif(not HAS_MALLOPT, reason="no glibc")
def test_memory_that_was_freed_is_used_again_without_page_faults():
    assert share_faulted_in_again(keep=False) > 0.5
    assert share_faulted_in_again(keep=True) < 0.1


@pytest.mark.skipif(not HAS_MALLOPT, reason="no glibc")
def test_who_sets_the_allocator_by_its_own_variables_keeps_that():
    assert share_faulted_in_again(keep=True, MALLOC_TRIM_THRESHOLD_="131072") > 0.5
    tunables = "glibc.malloc.trim_threshold=131072"
    assert share_faulted_in_again(keep=True, GLIBC_TUNABLES=tunables) > 0.5
