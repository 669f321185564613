"""Recipes of OCI images, a Containerfile for each role of an artifact."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from astraflow_contrib_pack.contents import SERVICES
from astraflow_core.errors import UserError

FOLDER = "/opt/astraflow"


def containerfile(manifest: Mapping[str, Any], digest: str, artifact: str, role: str) -> str:
    """The Containerfile of a role. The base image comes as an argument, by digest, since a tag may change; the tokens of
    a run come when the container starts, and are in no layer. Raises :class:`UserError` for an unknown role."""
    if role not in manifest["roles"]:
        raise UserError(
            f"the artifact has no role {role!r} (it has: {', '.join(manifest['roles'])})"
        )
    name = PurePath(artifact).name
    if shlex.quote(name) != name:
        raise UserError(
            f"{name!r}: rename the artifact; a Containerfile takes letters, digits, '.', '_' and '-'"
        )
    python, place = manifest["python"], f"{FOLDER}/{digest[:32]}"
    offline = " --offline" if manifest["complete"] else ""
    words = [f"{place}/envs/{role}/bin/python"]
    if role == SERVICES:
        words += ["-m", "astraflow_runtime"]
    entry = json.dumps(words)
    return f"""\
# Role {role} of the artifact {digest}.
# Build: podman build --build-arg BASE=docker.io/library/python@sha256:DIGEST -f THIS_FILE .
# BASE: an image of Python {python} by its digest, and for GPUs one with the CUDA libraries of the wheels.
ARG BASE
FROM ${{BASE}} AS install
COPY {name} /tmp/{name}
RUN python{python} /tmp/{name} --into {FOLDER} --role {role}{offline} && chmod -R a+rX {FOLDER}

FROM ${{BASE}}
COPY --from=install {FOLDER} {FOLDER}
RUN useradd --uid 10001 --create-home astraflow
USER 10001
WORKDIR {place}/run
ENV PATH={place}/envs/{role}/bin:$PATH PYTHONUNBUFFERED=1
ENTRYPOINT {entry}
"""
