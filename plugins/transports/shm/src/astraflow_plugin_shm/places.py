"""Where things lie: the endpoint, the names in a publisher's folder, and what its bell says."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from astraflow_core.weights.failures import PublisherFailed

PREFIX = "astraflow-weights-"
RECEIVED = "astraflow-received-"
BELL = "bell"
_SCHEME = "shm://"


class Ring(msgspec.Struct, frozen=True):
    """A version can be opened; msgpack on a PUB socket at ``ipc://FOLDER/bell``."""

    policy: str
    version: int
    digest: str
    size: int


def endpoint_of(host: str, folder: Path) -> str:
    """``shm://HOST/FOLDER``."""
    return f"{_SCHEME}{host}{quote(str(folder.absolute()))}"


def folder_of(endpoint: str) -> tuple[str, Path]:
    """Host and folder of an endpoint; raises :class:`PublisherFailed` if it is none of a publisher's."""
    host, slash, path = endpoint.removeprefix(_SCHEME).partition("/")
    folder = Path(unquote(slash + path))
    if not (endpoint.startswith(_SCHEME) and slash and folder.name.startswith(PREFIX)):
        raise PublisherFailed(f"expected an address such as {_SCHEME}HOST/dev/shm/{PREFIX}…")
    return host, folder


def data_of(folder: Path, policy: str, version: int) -> Path:
    """The safetensors file of a version."""
    return folder / f"{policy}-{version}.safetensors"


def manifest_of(folder: Path, policy: str, version: int) -> Path:
    """The manifest of a version (msgpack); its presence makes the version one."""
    return folder / f"{policy}-{version}.manifest"
