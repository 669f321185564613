"""pip's settings in uv's words: uv installs for a third of pip's CPU time and reads none of its files.

The set-up of a checkout loads this file before anything is installed, so it imports the standard library alone.
"""

from __future__ import annotations

import ast
import re
import shutil
import sys
from pathlib import Path

CONSTRAINT = "UV_CONSTRAINT"
SAME = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "constraint": (CONSTRAINT, " "),
}
"""Key of pip → variable of uv and what its values are joined by."""
WITHOUT_MEANING = frozenset(
    {
        "cache-dir", "default-timeout", "disable-pip-version-check", "no-cache-dir", "no-color", "no-compile",
        "no-input", "no-warn-script-location", "progress-bar", "quiet", "require-virtualenv", "retries",
        "root-user-action", "timeout", "use-feature", "verbose",
    }
)  # fmt: skip
"""Keys that decide neither what is installed nor from where."""
SECTIONS = ("global", "install", ":env:")
"""Later ones count more."""


def program() -> str | None:
    """The path of uv: that of our environment, else the first one on the search path."""
    candidate = Path(sys.executable).with_name("uv")
    return str(candidate) if candidate.exists() else shutil.which("uv")


def translated(listed: str) -> dict[str, str] | None:
    """uv's variables for what ``pip config list`` printed; None if some of it has no equivalent, for then
    only pip installs what its owner wants."""
    found: dict[str, str] = {}
    lines = [re.fullmatch(r"(global|install|:env:)\.([\w-]+)=(.+)", x) for x in listed.splitlines()]
    known = sorted((m for m in lines if m), key=lambda m: SECTIONS.index(m[1]))
    for _, key, value in (match.groups() for match in known):
        if key in WITHOUT_MEANING:
            continue
        if key not in SAME:
            return None
        found[key] = str(ast.literal_eval(value))
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_SYSTEM_CERTS": "1"}
    for key, value in found.items():
        name, between = SAME[key]
        variables[name] = between.join(value.split())
    return variables


def constraints_of(variables: dict[str, str]) -> list[str]:
    """The arguments that stand for the constraints in ``variables``, which loses them: where the command line has
    constraints uv ignores the variable, and pip holds to both."""
    files = variables.pop(CONSTRAINT, "").split()
    return [word for file in files for word in ("-c", file)]
