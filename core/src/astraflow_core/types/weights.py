"""Models and versions of their weights: resolved references, exported tensors, manifests, announcements, local sources."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Dtype = Literal[
    "F32", "F16", "BF16", "F64", "I8", "U8", "I16", "I32", "I64", "BOOL", "F8_E4M3", "F8_E5M2"
]
"""Element types by their safetensors names."""

Kind = Literal["full", "adapter"]
"""All tensors of a model, or low-rank changes to some of them."""

DTYPE_BYTES: dict[str, int] = {
    "F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2,
    "I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """The local Hugging Face ``folder`` of a reference, and ``pinned``: a reference that gives the same files whenever it is
    resolved, such as one with a commit."""

    folder: Path
    pinned: str


@dataclass(frozen=True, slots=True)
class ExportedTensor:
    """A full tensor under its Hugging Face name. ``data`` is a C-contiguous little-endian buffer of
    ``prod(shape) × itemsize`` bytes, valid until the next tensor is taken from the export."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: Any


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """Consecutive elements of a tensor in row-major order, from number ``start`` on, under its Hugging Face name.
    ``shape`` is that of the whole tensor; ``data`` is as :class:`ExportedTensor`'s."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    data: Any


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Where a tensor lies in a version: ``start`` and ``end`` are byte offsets into its file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """An immutable published version.

    The version is one safetensors file of ``size`` bytes, cut into blocks of ``block_size`` (the last may
    be shorter). ``blocks`` are the xxh3-128 digests of the blocks (16 bytes each), ``digest`` the xxh3-128
    hex digest over their concatenation. ``derives_from`` is the version it was made from, ``base`` the
    digest of the base of an adapter.
    """

    policy: str
    version: int
    kind: Kind
    size: int
    block_size: int
    tensors: tuple[TensorSpec, ...]
    blocks: tuple[bytes, ...]
    digest: str
    derives_from: int | None = None
    base: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """One of several publishers of one version: ``url`` serves the blocks of ``runs``, each the number of its first
    block and of the one after its last."""

    url: str
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a trainer announces to the dataflow, and the dataflow to every RaaS, about a version: enough
    to fetch and verify it. ``endpoints`` are addresses of publishers, best first."""

    policy: str
    version: int
    transport: str
    endpoints: tuple[str, ...]
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Link:
    """The measured connection from a publisher to this host: ``mb_s`` in 10^6 bytes per second, a
    lower bound, and the round-trip time in seconds."""

    mb_s: float
    round_trip_s: float


@dataclass(frozen=True, slots=True)
class WeightSource:
    """A version that is local, whole and verified. ``path`` is a safetensors file that any process on
    this host can open; it stays as it is until the source is released by its receiver. ``kind`` and ``base`` are
    the manifest's. ``link`` is what the fetch measured, if it took long enough to measure it."""

    policy: str
    version: int
    path: Path
    digest: str
    bytes_received: int
    seconds: float
    kind: Kind = "full"
    base: str | None = None
    link: Link | None = None
