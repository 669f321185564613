"""Where an installed distribution came from, and the arguments of `pip install` that install it from there again."""

from __future__ import annotations

import json
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

_ORIGIN = "direct_url.json"


def source_of(distribution: metadata.Distribution, extra: str) -> tuple[str, ...]:
    """Arguments of ``pip install`` for the same source, with ``extra`` unless it is empty.

    Read from ``direct_url.json`` (PyPA's "Recording the Direct URL Origin"): a folder, editable if it is
    here; an archive or a repository by its address; without that file, the version from an index.
    """
    name = distribution.metadata["Name"]
    extras = f"[{extra}]" if extra else ""
    text = distribution.read_text(_ORIGIN)
    if text is None:
        return (f"{name}{extras}=={distribution.version}",)
    origin: dict[str, Any] = json.loads(text)
    url = str(origin["url"])
    if "dir_info" in origin:
        folder = f"{Path(unquote(urlsplit(url).path))}{extras}"
        return ("-e", folder) if origin["dir_info"].get("editable") else (folder,)
    if "vcs_info" in origin:
        vcs = origin["vcs_info"]
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return (f"{name}{extras} @ {url}",)


def how_to_add(extra: str, distribution: metadata.Distribution) -> str:
    """The command that installs an extra of a distribution: from the folder or address that it came from, which an
    index need not know, else by its name."""
    if distribution.read_text(_ORIGIN) is None:
        return f"pip install '{distribution.metadata['Name']}[{extra}]'"
    return f"pip install {shlex.join(source_of(distribution, extra))}"
