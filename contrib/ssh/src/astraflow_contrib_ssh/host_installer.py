"""The program that a launcher sends to a host to install an artifact of ``astraflow pack`` there.

It needs Python and its standard library only. Its standard input has this program, read by the bootstrap, and then, after it has
written ``send``, the artifact. The last line that it writes is JSON: ``python``, the interpreter of a role, and ``run``, the folder of
the config and its modules; or ``error``.

``argv``: the folder for artifacts, from the home folder if it is relative; SHA-256 and bytes of the artifact; the role; the longest time
in seconds.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import IO

CHUNK = 1 << 20


def say(line: str) -> None:
    """A line to the launcher."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def receive(source: IO[bytes], path: str, digest: str, size: int) -> None:
    """Write what arrives to ``path``, in one step; ``ValueError`` unless it is whole."""
    partial = f"{path}.{os.getpid()}"
    found, left = hashlib.sha256(), size
    try:
        with open(partial, "wb") as out:
            while left and (chunk := source.read(min(CHUNK, left))):
                found.update(chunk)
                out.write(chunk)
                left -= len(chunk)
        if found.hexdigest() != digest:
            raise ValueError("the artifact arrived incomplete or changed; start again")
        os.replace(partial, path)
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


def installed(path: str, into: str, role: str, longest_s: float) -> dict[str, str]:
    """The interpreter of ``role`` and the folder of the run; the artifact installs itself, once. ``ValueError`` with what it
    says if it does not."""
    command = [sys.executable, "-I", path, "--into", into, "--role", role, "--offline"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=longest_s
    )  # fmt: skip
    if done.returncode:
        raise ValueError(done.stderr.strip()[-2000:] or f"exit code {done.returncode}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return {"python": answer["pythons"][role], "run": answer["run"]}


def main(arguments: list[str], source: IO[bytes]) -> None:
    """Report to the launcher whether to send the artifact, install it, and report the outcome."""
    folder, digest, size, role, longest_s = arguments
    into = os.path.join(os.path.expanduser("~"), os.path.expanduser(folder))
    path = os.path.join(into, digest + ".afpack")
    try:
        os.makedirs(into, mode=0o700, exist_ok=True)
        if not os.path.exists(path):
            say("send")
            receive(source, path, digest, int(size))
        outcome = installed(path, into, role, float(longest_s))
    except OSError as error:
        outcome = {"error": f"{error.filename or into}: {error.strerror}"}
    except (ValueError, KeyError, IndexError, subprocess.TimeoutExpired) as error:
        outcome = {"error": str(error)}
    say(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1:], globals()["f"])
