"""What is read of a Dockerfile: where work begins, variables and files; all else needs a container."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_WITHOUT_EFFECT = {
    "CMD",
    "ENTRYPOINT",
    "EXPOSE",
    "HEALTHCHECK",
    "LABEL",
    "MAINTAINER",
    "STOPSIGNAL",
}
_HEAD = re.compile(r"\s*([A-Za-z]+)\s+(.*)", re.DOTALL)


@dataclass
class ImageDescription:
    """``copies`` are (file or folder next to the Dockerfile, absolute destination), in their order; a destination that ends
    with ``/`` is a folder."""

    workdir: str = "/"
    variables: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[str, str]] = field(default_factory=list)


def read_dockerfile(path: Path, images: Sequence[str], skip_runs: bool) -> ImageDescription:
    """What a Dockerfile describes. Raises :class:`ValueError` if part of it needs a container."""
    found = ImageDescription()
    for line in _lines(path.read_text("utf-8")):
        head = _HEAD.fullmatch(line)
        if head is None:
            raise ValueError(
                f"environment/Dockerfile has the line {line!r:.80}, which is not understood"
            )
        _apply(found, head[1].upper(), head[2].strip(), images, skip_runs)
    return found


def _apply(
    found: ImageDescription, keyword: str, rest: str, images: Sequence[str], skip_runs: bool
) -> None:
    if keyword == "FROM":
        name = rest.split()[0]
        if " as " in f" {rest.lower()} " or name.rpartition("/")[2].partition(":")[0] not in images:
            raise ValueError(
                f"needs the image {name!r}, and no container runs here; if this host provides everything in the image, add its name "
                "to 'images'"
            )
    elif keyword == "WORKDIR":
        found.workdir = posixpath.normpath(posixpath.join(found.workdir, rest))
    elif keyword == "ENV":
        found.variables.update(_variables(rest))
    elif keyword in ("COPY", "ADD"):
        found.copies += _copies(rest, found.workdir)
    elif keyword == "RUN" and skip_runs:
        pass
    elif keyword not in _WITHOUT_EFFECT:
        more = "; run_lines = 'skip' leaves such lines out" if keyword == "RUN" else ""
        raise ValueError(
            f"environment/Dockerfile has {keyword} ({rest.splitlines()[0]:.60}), and no container is built here{more}"
        )


def _lines(text: str) -> Iterator[str]:
    """Instructions, with continued lines joined."""
    kept = [
        line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")
    ]
    joined = "\n".join(kept).replace("\\\n", " ")
    return (line for line in joined.splitlines() if line.strip())


def _variables(rest: str) -> dict[str, str]:
    words = shlex.split(rest)
    if words and "=" not in words[0]:  # the old form: ENV NAME value
        name, _, value = rest.partition(" ")
        return {name: value.strip()}
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _copies(rest: str, workdir: str) -> list[tuple[str, str]]:
    words = list(map(str, json.loads(rest))) if rest.startswith("[") else shlex.split(rest)
    options = [word for word in words if word.startswith("--")]
    if any(not option.startswith(("--chmod", "--chown")) for option in options):
        raise ValueError(
            f"environment/Dockerfile copies with {options[0]}, which needs a container"
        )
    *sources, target = [word for word in words if word not in options]
    if not sources or any("://" in source or "*" in source for source in sources):
        raise ValueError(
            f"environment/Dockerfile copies {rest!r:.60}; only files next to it can be copied"
        )
    goes_into = target.endswith("/") or len(sources) > 1 or target == "."
    absolute = posixpath.normpath(posixpath.join(workdir, target))
    return [(source, absolute.rstrip("/") + "/" if goes_into else absolute) for source in sources]
