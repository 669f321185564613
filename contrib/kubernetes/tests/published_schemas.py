"""The published schemas of Kubernetes' objects, read from the wheel of kubernetes-validate."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft7Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

REQUIREMENT = "kubernetes-validate==1.37.0"
VERSIONS = ("v1.30.0", "v1.36.0")
DOWNLOAD_S = 120
_FOLDER = "kubernetes_validate/kubernetes-json-schema"
_SHARED = "/api/_definitions.json"


def complaints(made: dict[str, Any], version: str) -> list[str]:
    """What a server of this version does not accept in an object; unknown fields are among it."""
    group, _, of = str(made.get("apiVersion")).rpartition("/")
    parts = [str(made.get("kind")).lower(), *([group.split(".")[0]] if group else []), of]
    found = _validator("-".join(parts), version).iter_errors(made)
    return [f"{'.'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


@cache
def _validator(name: str, version: str) -> Draft7Validator:
    registry = Registry(retrieve=lambda uri: _schema(uri, version))  # type: ignore[call-arg]
    return Draft7Validator(_schema(name + ".json", version).contents, registry=registry)


@cache
def _schema(uri: str, version: str) -> Resource[Any]:
    with zipfile.ZipFile(_wheel()) as wheel:
        text = wheel.read(f"{_FOLDER}/{version}-local-strict/{Path(uri).name}")
    return Resource.from_contents(json.loads(text), default_specification=DRAFT7)


@cache
def _wheel() -> Path:
    """The wheel, downloaded once in this process."""
    folder = Path(tempfile.mkdtemp(prefix="kubernetes-schemas-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", REQUIREMENT]
    subprocess.run(command, cwd=folder, check=True, timeout=DOWNLOAD_S)
    (wheel,) = folder.glob("*.whl")
    return wheel
