"""Who is the parent of whom, and for how long."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform != "linux", reason="prctl"),
]


ADOPTING = """
import os, sys
from astraflow_wire.host.parent import adopt_orphans, adopting_orphans
def orphan():
    reader, writer = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.read(reader, 1)
            os._exit(7)
        os._exit(0)
    os.wait()
    os.write(writer, b"x")
    try:
        return os.waitstatus_to_exitcode(os.wait()[1])
    except ChildProcessError:
        return None

if sys.argv[1] == "always":
    adopt_orphans()
with adopting_orphans():
    inside = orphan()
print(inside, orphan())
"""


@pytest.mark.parametrize(("kind", "expected"), [("never", "7 None\n"), ("always", "7 7\n")])
def test_orphans_are_adopted_for_a_moment(kind: str, expected: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADOPTING, kind],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert done.stdout == expected
