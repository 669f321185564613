"""``python -m …_prompts_elsewhere``: prompts of a source as a fresh interpreter makes them.

Reads a recipe as JSON from standard input, and writes as JSON what :func:`facts` finds and who was called over the
network while a module was being imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import xxhash

from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_testing.conformance.subject import SubjectRecipe, context, installed

MOST = 64
DEADLINE_S = 50.0
_DIALS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname")

Facts = list[Any]
"""Length of a source, and for some indices ``[index, id, digest of its data]``."""


def facts(source: PromptSource) -> Facts:
    """What a source is, as far as :data:`MOST` of its prompts show."""
    found: Facts = [len(source)]
    for index in range(0, len(source), max(1, len(source) // MOST)):
        prompt = source[index]
        data = json.dumps(prompt.data, sort_keys=True, default=repr).encode()
        found.append([index, prompt.id, xxhash.xxh3_64_hexdigest(data)])
    return found


def elsewhere(recipe: SubjectRecipe, folder: Path, hash_seed: int) -> tuple[list[Facts], list[str]]:
    """The facts of each variant in a new process with another seed of hashes, and what imports dialled."""
    done = subprocess.run(  # the program is this module, the recipe goes in by standard input
        [sys.executable, "-m", __name__],
        input=json.dumps(
            [recipe.kind, recipe.use, list(recipe.variants), str(folder)], default=str
        ),
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry),
            "PYTHONHASHSEED": str(hash_seed),
        },
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-2000:])
    found, dialled = json.loads(done.stdout.strip().splitlines()[-1])
    return found, dialled


def _importing() -> str:
    """The module whose import is under way; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "importlib._bootstrap" and "spec" in frame.f_locals:
            return str(getattr(frame.f_locals["spec"], "name", ""))
        frame = frame.f_back
    return ""


def _is_network(event: str, arguments: Sequence[Any]) -> bool:
    if event not in _DIALS:
        return False
    return event != "socket.connect" or isinstance(arguments[1], tuple)


def main() -> None:
    """Create the sources and print their prompts."""
    kind, use, variants, folder = json.load(sys.stdin)
    dialled: list[str] = []

    def watch(event: str, arguments: Sequence[Any]) -> None:
        if _is_network(event, arguments) and (module := _importing()):
            dialled.append(f"{event} {arguments[-1]!r:.80} by the import of {module}")

    sys.addaudithook(watch)
    subject = installed(kind, use, *variants)
    built = [factory(context("dataflow", Path(folder))) for factory in subject.variants.values()]
    sys.stdout.write(json.dumps([[facts(source) for source in built], dialled]) + "\n")


if __name__ == "__main__":
    main()
