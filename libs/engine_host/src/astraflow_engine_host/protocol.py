"""What a RaaS and an engine host say to each other: ZeroMQ multipart messages.

The first frame is a msgpack header, the others raw little-endian buffers; arrays of many requests travel
concatenated, so a message costs the same number of frames whether it carries one request or a thousand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow_core import errors
from astraflow_core.errors import WireError
from astraflow_core.types import (
    Bucket,
    GenerateRequest,
    GenerateResult,
    Rendezvous,
    Sampling,
    WeightSource,
)
from astraflow_core.types.generation import Images, RoutedExperts, images_between
from astraflow_core.types.weights import Kind
from astraflow_wire.decoding import from_msgpack
from astraflow_wire.images import table as image_table
from astraflow_wire.images.table import ImageTable


class EngineError(errors.AstraFlowError):
    """An engine raised; the text holds its exception and where it was raised."""


class HostGone(errors.AstraFlowError):
    """The engine host ended or does not answer; what it was asked to do is lost and can be retried."""


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class HostMessage(msgspec.Struct, frozen=True, array_like=True):
    """Base of the headers."""


class Failure(HostMessage, frozen=True):
    """An exception on its way to the other process: its type's name, its text, ``file:line``."""

    kind: str
    message: str
    where: str = ""


class Generate(HostMessage, frozen=True, tag="generate"):
    """Requests; the first buffer is their prompts, int32, concatenated. ``sampling[which[i]]`` is of request i. The last
    buffer has the files of ``images``, if there are any, each once."""

    ids: list[str]
    lengths: list[_Count]
    samplings: list[Sampling]
    which: list[_Count]
    sessions: list[str]
    priorities: list[int]
    pinned: list[int | None]
    images: ImageTable | None = None


class RoutedGenerate(Generate, frozen=True, tag="routed_generate"):
    """The same; the requests ``routed``, by their index, ask for the routed experts."""

    routed: list[_Count] = []


class Abort(HostMessage, frozen=True, tag="abort"):
    """Requests whose callers no longer wait."""

    ids: list[str]


class Score(HostMessage, frozen=True, tag="score"):
    """The first buffer holds the tokens, int32, the last one the files of ``images``, if there are any; the reply's buffer
    the log-probs, float32."""

    call: int
    images: ImageTable | None = None


class Pause(HostMessage, frozen=True, tag="pause"):
    """``Engine.pause``."""

    call: int
    mode: str


class Resume(HostMessage, frozen=True, tag="resume"):
    """``Engine.resume``."""

    call: int


class LoadWeights(HostMessage, frozen=True, tag="load_weights"):
    """``Engine.load_weights``; fields as in :class:`astraflow_core.types.WeightSource`."""

    call: int
    policy: str
    version: int
    path: str
    digest: str
    bytes_received: int
    seconds: float
    kind: Kind = "full"
    base: str | None = None

    @property
    def source(self) -> WeightSource:
        """The source to load."""
        return WeightSource(
            self.policy,
            self.version,
            Path(self.path),
            self.digest,
            self.bytes_received,
            self.seconds,
            self.kind,
            self.base,
        )


class Join(HostMessage, frozen=True, tag="join"):
    """``DirectEngine.join``."""

    call: int
    rendezvous: Rendezvous


class Receive(HostMessage, frozen=True, tag="receive"):
    """``DirectEngine.receive``."""

    call: int
    version: int
    buckets: tuple[Bucket, ...]


class LearnDrafts(HostMessage, frozen=True, tag="learn_drafts"):
    """``TakesDrafts.learn_drafts``; buffers: tokens, int32, and sampled, uint8; the reply's ``useful``: what it returns."""

    call: int
    lengths: list[_Count]


class Sleep(HostMessage, frozen=True, tag="sleep"):
    """``Engine.sleep``."""

    call: int
    level: int


class Wake(HostMessage, frozen=True, tag="wake"):
    """``Engine.wake``."""

    call: int


class Health(HostMessage, frozen=True, tag="health"):
    """``Engine.health``."""

    call: int


class Ping(HostMessage, frozen=True, tag="ping"):
    """Answered by the host itself, with ``cpu_s``: proves that its event loop runs."""

    call: int


class Close(HostMessage, frozen=True, tag="close"):
    """``Engine.close``; the host ends after its reply."""

    call: int


class Ready(HostMessage, frozen=True, tag="ready"):
    """The engine has started; ``direct``: it is a :class:`astraflow_core.protocols.engine.DirectEngine`, with ``workers``
    processes."""

    context_length: int
    temperature: bool
    truncation: bool
    seconds: float
    direct: bool = False
    workers: int = 0


class StartFailed(HostMessage, frozen=True, tag="start_failed"):
    """The engine could not be built or started; the host ends."""

    failure: Failure


class Results(HostMessage, frozen=True, tag="results"):
    """Finished requests; the buffers are tokens int32, log-probs float32 and versions int32, each
    concatenated. ``failed`` ids carry ``failures`` instead."""

    ids: list[str]
    lengths: list[_Count]
    reasons: list[str]
    failed: list[str]
    failures: list[Failure]


class RoutedResults(Results, frozen=True, tag="routed_results"):
    """The same of an engine that was asked for routed experts: more buffers, one for each of the results ``routed``, by
    their index, with the ``shapes`` of their arrays and the bytes ``sizes`` of an id."""

    routed: list[_Count]
    shapes: list[tuple[_Count, _Count, _Count]]
    sizes: list[Annotated[int, msgspec.Meta(ge=1, le=2)]]


class Reply(HostMessage, frozen=True, tag="reply"):
    """The answer to a call."""

    call: int
    values: dict[str, float] = {}


class Failed(HostMessage, frozen=True, tag="failed"):
    """A call that raised."""

    call: int
    failure: Failure


ToHost = (
    Generate
    | RoutedGenerate
    | Abort
    | Score
    | Pause
    | Resume
    | LoadWeights
    | Join
    | Receive
    | LearnDrafts
    | Sleep
    | Wake
    | Health
    | Ping
    | Close
)
FromHost = Ready | StartFailed | Results | RoutedResults | Reply | Failed

_encode = msgspec.msgpack.Encoder().encode
Frames = list[Any]
D = TypeVar("D", bound=np.generic)


def frames(message: ToHost | FromHost, *buffers: npt.NDArray[Any]) -> Frames:
    """A message as multipart frames."""
    return [_encode(message), *(np.ascontiguousarray(buffer).data for buffer in buffers)]


def decode_to_host(header: bytes) -> ToHost:
    """What the RaaS sent. Raises :class:`WireError`, as all decoding here does."""
    return cast(ToHost, from_msgpack(header, ToHost, "malformed message of a RaaS"))  # type: ignore[arg-type]


def decode_from_host(header: bytes) -> FromHost:
    """What a host sent."""
    return cast(FromHost, from_msgpack(header, FromHost, "malformed message of a host"))  # type: ignore[arg-type]


def array(buffers: Sequence[bytes], index: int, dtype: type[D], length: int) -> npt.NDArray[D]:
    """Buffer ``index`` of a message as a read-only array of ``length`` elements."""
    if index >= len(buffers):
        raise WireError(f"a message of {len(buffers)} buffers; number {index} is missing")
    if (size := memoryview(buffers[index]).nbytes) != length * np.dtype(dtype).itemsize:
        raise WireError(f"buffer {index} has {size} bytes; {length} elements were expected")
    return np.frombuffer(buffers[index], dtype)


def tokens_of(buffers: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """The tokens of :class:`Score`."""
    return array(buffers, 0, np.int32, len(buffers[0]) // 4 if buffers else 0)


def _alike(what: str, *columns: Sequence[object]) -> None:
    if len(sizes := {len(column) for column in columns}) > 1:
        raise WireError(f"a message with lists of {sorted(sizes)} {what}")


def _joined(parts: Sequence[npt.NDArray[D]], dtype: type[D]) -> npt.NDArray[D]:
    return np.concatenate(parts, dtype=dtype) if parts else np.empty(0, dtype)


def encode_requests(requests: Sequence[GenerateRequest]) -> Frames:
    """Requests as one message; equal sampling objects are sent once."""
    positions: dict[int, int] = {}
    samplings: list[Sampling] = []
    which = []
    for request in requests:
        position = positions.setdefault(id(request.sampling), len(samplings))
        if position == len(samplings):
            samplings.append(request.sampling)
        which.append(position)
    columns = (
        [request.id for request in requests],
        [len(request.prompt) for request in requests],
        samplings,
        which,
        [request.session for request in requests],
        [request.priority for request in requests],
        [request.pinned_version for request in requests],
    )
    routed = [index for index, request in enumerate(requests) if request.routing]
    table, files = image_table.encode_joined(
        (request.images, len(request.prompt)) for request in requests
    )
    header = RoutedGenerate(*columns, table, routed) if routed else Generate(*columns, table)
    return [*frames(header, _joined([request.prompt for request in requests], np.int32)), *files]


def decode_requests(header: Generate, buffers: Sequence[bytes]) -> list[GenerateRequest]:
    """The requests of a message; prompts are read-only views."""
    _alike(
        "requests",
        header.ids,
        header.lengths,
        header.which,
        header.sessions,
        header.priorities,
        header.pinned,
    )
    if max(header.which, default=-1) >= len(header.samplings):
        raise WireError(
            f"a message has {len(header.samplings)} samplings; a request refers to another"
        )
    routed = set(header.routed) if isinstance(header, RoutedGenerate) else set()
    prompts = array(buffers, 0, np.int32, sum(header.lengths))
    images: Images = ()
    if header.images is not None:
        images = image_table.decode(header.images, buffers, list(accumulate(header.lengths)))
    requests = []
    start = 0
    for index, length in enumerate(header.lengths):
        requests.append(
            GenerateRequest(
                header.ids[index],
                prompts[start : start + length],
                header.samplings[header.which[index]],
                header.sessions[index],
                header.priorities[index],
                header.pinned[index],
                index in routed,
                images_between(images, start, start + length, 0),
            )
        )
        start += length
    return requests


def encode_results(results: Sequence[GenerateResult], failed: dict[str, Failure]) -> Frames:
    """Everything that finished at once as one message."""
    columns = (
        [result.id for result in results],
        [len(result.tokens) for result in results],
        [str(result.finish_reason) for result in results],
        list(failed),
        list(failed.values()),
    )
    routed = {i: r.routed_experts for i, r in enumerate(results) if r.routed_experts is not None}
    header = Results(*columns)
    if routed:
        shapes = [cast(tuple[int, int, int], each.shape) for each in routed.values()]
        sizes = [each.dtype.itemsize for each in routed.values()]
        header = RoutedResults(*columns, list(routed), shapes, sizes)
    return frames(
        header,
        _joined([result.tokens for result in results], np.int32),
        _joined([result.logprobs for result in results], np.float32),
        _joined([result.versions for result in results], np.int32),
        *routed.values(),
    )


def decode_results(header: Results, buffers: Sequence[bytes]) -> list[GenerateResult]:
    """The results of a message; arrays are read-only views."""
    _alike("results", header.ids, header.lengths, header.reasons)
    _alike("failures", header.failed, header.failures)
    total = sum(header.lengths)
    tokens = array(buffers, 0, np.int32, total)
    logprobs = array(buffers, 1, np.float32, total)
    versions = array(buffers, 2, np.int32, total)
    routed = _routed(header, buffers) if isinstance(header, RoutedResults) else {}
    results = []
    start = 0
    for index, (identifier, length, reason) in enumerate(
        zip(header.ids, header.lengths, header.reasons, strict=True)
    ):
        end = start + length
        results.append(
            GenerateResult(
                identifier,
                tokens[start:end],
                logprobs[start:end],
                versions[start:end],
                reason,  # type: ignore[arg-type]
                routed.get(index),
            )
        )
        start = end
    return results


def _routed(header: RoutedResults, buffers: Sequence[bytes]) -> dict[int, RoutedExperts]:
    _alike("routed results", header.routed, header.shapes, header.sizes)
    found: dict[int, RoutedExperts] = {}
    columns = zip(header.routed, header.shapes, header.sizes, strict=True)
    for place, (index, shape, size) in enumerate(columns, 3):
        count = math.prod(shape)
        if size == 1:
            found[index] = array(buffers, place, np.uint8, count).reshape(shape)
        else:
            found[index] = array(buffers, place, np.uint16, count).reshape(shape)
    return found


KNOWN: dict[str, type[Exception]] = {
    "ValueError": ValueError,
    "WrongVersion": errors.WrongVersion,
    "WeightsError": errors.WeightsError,
    "UserError": errors.UserError,
    "PluginError": errors.PluginError,
    "PreflightError": errors.PreflightError,
}
"""Failures that callers can distinguish; they arrive as their own type."""


def as_exception(failure: Failure) -> Exception:
    """The exception that a failure stands for: its own type if callers can distinguish it, else
    :class:`EngineError`."""
    if known := KNOWN.get(failure.kind):
        return known(failure.message)
    at = f" ({failure.where})" if failure.where else ""
    return EngineError(f"{failure.kind}: {failure.message}{at}")
