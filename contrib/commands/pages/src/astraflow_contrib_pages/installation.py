"""What is installed where the pages are served, and why a component can be chosen or cannot: what ``astraflow plugins`` says.

Asked of that command, in a separate process: to judge a component it imports it, and whatever that imports.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import lru_cache
from typing import Any

from astraflow_core.errors import Refused
from astraflow_runtime.telemetry.printable import all_printable, printable

LONGEST_S = 15.0
_KEPT = 256
_NAME = re.compile(r"\w[\w.-]{0,99}(/\w[\w.-]{0,99})?")
"""No ``MODULE:ATTR``, which would be imported."""


@lru_cache(_KEPT)
def why(name: str) -> list[dict[str, Any]]:
    """Reports on a plugin, its distribution, or a component ``KIND/NAME``; ``Refused`` (400, 404) for what is no such name or means
    nothing, (503) if it takes too long."""
    if not _NAME.fullmatch(name):
        raise Refused(
            400,
            f"{name[:100]!r} is not a name of a plugin, a distribution or KIND/NAME of a component",
        )
    return _asked("why", "--json", name)


@lru_cache(1)
def installed() -> list[dict[str, Any]]:
    """All plugins: ``name``, ``distribution``, ``version``, ``state``, ``problem`` and ``components``."""
    return [
        {
            **{key: plugin[key] for key in ("name", "distribution", "version", "state", "problem")},
            "components": [f"{each['kind']}/{each['name']}" for each in plugin["components"]],
        }
        for plugin in _asked("--json")
    ]


def _asked(*arguments: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-P", "-m", "astraflow_runtime", "plugins", *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "ASTRAFLOW_TOKEN"}
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(503, f"astraflow plugins did not answer: {error}") from error
    try:
        found: list[dict[str, Any]] = all_printable(json.loads(done.stdout))
    except ValueError as error:
        said = printable(done.stderr.strip().removeprefix("astraflow: ")[:1000])
        raise Refused(404, said or "astraflow plugins said nothing") from error
    return found
