"""Where things lie: the endpoint, the names in a publisher's folder, and what its bell says."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote, unquote

import msgspec

from astraflow_weights.addresses import printable
from astraflow_weights.failures import PublisherFailed
from astraflow_wire.decoding import from_msgpack

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


def read_ring(message: bytes) -> Ring:
    """What a bell says. Raises :class:`astraflow_core.errors.WireError`."""
    return from_msgpack(message, Ring, "a malformed ring")


def endpoint_of(host: str, folder: Path) -> str:
    """``shm://HOST/FOLDER``."""
    return f"{_SCHEME}{host}{quote(str(folder.absolute()))}"


def folder_of(endpoint: str) -> tuple[str, Path]:
    """Host and folder of an endpoint; raises :class:`PublisherFailed` if it does not belong to a publisher."""
    host, slash, path = endpoint.removeprefix(_SCHEME).partition("/")
    folder = Path(unquote(slash + path))
    whole = printable(endpoint) and endpoint.startswith(_SCHEME) and slash
    if not (whole and folder.name.startswith(PREFIX) and "\0" not in str(folder)):
        raise PublisherFailed(f"expected an address such as {_SCHEME}HOST/dev/shm/{PREFIX}…")
    return host, folder


def data_of(folder: Path, policy: str, version: int) -> Path:
    """The safetensors file of a version."""
    return folder / f"{policy}-{version}.safetensors"


def manifest_of(folder: Path, policy: str, version: int) -> Path:
    """The manifest of a version (msgpack); its presence makes the version one."""
    return folder / f"{policy}-{version}.manifest"
