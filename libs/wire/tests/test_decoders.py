"""Whatever bytes come, a decoder of the core reads them or raises the one decode error, in bounded memory.

The messages of the dataflow's HTTP interface have tests of their own; those of the transports are with these.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash

from astraflow_core.errors import WireError
from astraflow_core.types import (
    Announcement,
    Batch,
    GenerateRequest,
    GenerateResult,
    Group,
    Manifest,
    Sampling,
    Source,
    Trajectory,
)
from astraflow_core.types import (
    Sequence as TokenSequence,
)
from astraflow_engine_host import protocol as host
from astraflow_runtime.preflight import trainer_protocol as preflight
from astraflow_runtime.raas.engines.probing import columns_of, images_of
from astraflow_runtime.raas.rewards.pool import WorkerVerdict
from astraflow_runtime.trainer.ranks.rank_commands import (
    FromRank,
    Hello,
    RankReply,
    ToRank,
    UpdateCommand,
)
from astraflow_testing.damage import Format, assert_refused_or_read, damaged
from astraflow_weights import sources
from astraflow_weights.addresses import address_of
from astraflow_weights.announced import decode_manifest
from astraflow_weights.failures import PublisherFailed
from astraflow_wire.batches import NoBatch, decode_batch, encode_batch, encode_no_batch
from astraflow_wire.decoding import from_json, from_msgpack
from astraflow_wire.frames import Frame, encode_frame
from astraflow_wire.groups import ReceivedGroup, encode_group
from astraflow_wire.http import client
from astraflow_wire.images.files import digest_of
from astraflow_wire.images.table import ImagePlace, ImageTable
from astraflow_wire.messages import AnnouncementMessage, Probe, decode, encode
from astraflow_wire.model_files.tensor_file import lay_out, read_specs


@dataclass(frozen=True)
class Decoder:
    """``sound`` messages, and what reads them."""

    read: Callable[[bytes], object]
    sound: Sequence[bytes]
    format: Format = "msgpack"


def under(frame: bytes, read: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """Reads ``frame`` with another header."""
    columns = [np.frombuffer(buffer, np.uint8) for buffer in Frame(frame).buffers]
    return lambda header: read(encode_frame(msgspec.Raw(header), columns))


def group() -> bytes:
    mask = np.array([False, True, True])
    sequence = TokenSequence(
        "solver", np.arange(3, dtype=np.int32), mask, np.where(mask, -1, 0).astype(np.float32),
        np.where(mask, 0, -1).astype(np.int32), 1.0,
    )  # fmt: skip
    return encode_group(Group("train-1", "p0", (Trajectory((sequence,)),) * 2), "raas-0")


def batch() -> bytes:
    rows, floats = np.array([2, 1], np.int32), np.zeros(2, np.float32)
    counted = np.zeros(2, np.int32)
    return encode_batch(
        Batch(
            id="solver-1", policy="solver", version=0, lengths=rows, tokens=np.arange(3, dtype=np.int32),
            loss_mask=np.array([False, True, False]), logprobs=np.zeros(3, np.float32),
            versions=np.zeros(3, np.int32), rewards=floats, group=np.arange(2), trajectory=np.arange(2),
            group_size=rows, group_mean=floats, group_std=floats, source="judge", counted_from=counted,
        )
    )  # fmt: skip


def read_batch(body: bytes) -> None:
    """A batch that is accepted can be cut."""
    found = decode_batch(body)
    if not isinstance(found, NoBatch):
        found.take(np.arange(len(found), dtype=np.int64))
        assert len(found.row_of_token) == len(found.tokens)


def manifest() -> tuple[Manifest, Announcement]:
    _, specs = lay_out([("a", "F32", (2, 3)), ("b", "BF16", (64,))])
    size = max(spec.end for spec in specs)
    blocks = tuple(bytes([i]) * 16 for i in range(-(-size // 64)))
    digest = xxhash.xxh3_128_hexdigest(b"".join(blocks))
    made = Manifest("solver", 1, "full", size, 64, specs, blocks, digest)
    return made, Announcement("solver", 1, "http", ("http://127.0.0.1:1",), digest, size)


MANIFEST, TOLD = manifest()


def read_manifest(body: bytes) -> None:
    sources.decode(body, decode_manifest(body, TOLD))


def tensor_file(header: bytes) -> object:
    whole = len(header).to_bytes(8, "little") + header + bytes(2 * 64 + 24)
    return read_specs(memoryview(whole))


SAMPLING = Sampling(max_tokens=4)
REQUESTS = host.encode_requests(
    [GenerateRequest(name, np.arange(3, dtype=np.int32), SAMPLING) for name in ("a", "b")]
)
RESULTS = host.encode_results(
    [GenerateResult("a", *(np.zeros(4, d) for d in (np.int32, np.float32, np.int32)), "stop")],
    {"b": host.Failure("ValueError", "no")},
)
CALLS = (host.Abort(["a"]), host.Pause(1, "keep"), host.LoadWeights(1, "p", 2, "/x", "d", 3, 0.5))
ANSWERS = (host.Reply(1, {"cpu_s": 1.0}), host.Failed(1, host.Failure("E", "no")))
READY = host.Ready(64, True, False, 0.5)


def read_requests(header: bytes) -> None:
    message = host.decode_to_host(header)
    if isinstance(message, host.Generate):
        host.decode_requests(message, REQUESTS[1:])


def read_results(header: bytes) -> None:
    message = host.decode_from_host(header)
    if isinstance(message, host.Results):
        host.decode_results(message, RESULTS[1:])


PROBE = Probe(
    lengths=[2, 1], tokens=bytes(12), sampled=bytes(3), logprobs=bytes(12), files=b"one",
    images=ImageTable([ImagePlace(0, 1, 0)], [digest_of(b"one")], [3]),
)  # fmt: skip
VERSION = AnnouncementMessage(
    policy="solver", version=1, transport="http", endpoints=["http://a:1"], digest="d", size=1,
    probe=PROBE,
)  # fmt: skip


def read_version(body: bytes) -> None:
    message = decode(body, AnnouncementMessage)
    if message.probe is not None:
        columns_of(message.probe)
        images_of(message.probe)


ASKED = encode_frame(preflight.AskPublish(1), [])
TOLD_BACK = encode_frame(
    preflight.Published(("e",), "d", 1, [preflight.TensorDigest("a", "F32", (2,), "d")]), []
)


def typed(expected: Any) -> Callable[[bytes], object]:
    return lambda body: from_msgpack(body, expected, "malformed")


DECODERS = {
    "frame": Decoder(Frame, [group(), batch()], "bytes"),
    "group": Decoder(ReceivedGroup, [group()], "bytes"),
    "group header": Decoder(under(group(), ReceivedGroup), [Frame(group()).header]),
    "batch": Decoder(read_batch, [batch(), encode_no_batch(True, "over")], "bytes"),
    "batch header": Decoder(under(batch(), read_batch), [Frame(batch()).header]),
    "no batch": Decoder(
        under(encode_no_batch(True, "x"), read_batch), [Frame(encode_no_batch(True, "x")).header]
    ),
    "tensor file": Decoder(
        tensor_file, [lay_out([("a", "F32", (2, 3)), ("b", "BF16", (64,))])[0][8:]], "json"
    ),
    "tensor file, bytes": Decoder(
        lambda data: read_specs(memoryview(data)), [lay_out([("a", "U8", (3,))])[0] + b"abc"], "bytes"
    ),
    "manifest": Decoder(
        read_manifest,
        [sources.encode(MANIFEST, [Source("http://a:1", ((0, len(MANIFEST.blocks)),))])],
    ),
    "version with a probe": Decoder(read_version, [encode(VERSION)]),
    "to an engine host": Decoder(
        read_requests, [REQUESTS[0], *(host.frames(call)[0] for call in CALLS)]
    ),
    "from an engine host": Decoder(
        read_results, [RESULTS[0], *(host.frames(said)[0] for said in (*ANSWERS, READY))]
    ),
    "to a trainer of the doctor": Decoder(
        under(ASKED, lambda body: preflight.decode_to_trainer(Frame(body))), [Frame(ASKED).header]
    ),
    "from a trainer of the doctor": Decoder(
        under(TOLD_BACK, lambda body: preflight.decode_from_trainer(Frame(body))),
        [Frame(TOLD_BACK).header],
    ),
    "verdict": Decoder(typed(WorkerVerdict), [msgspec.msgpack.encode(WorkerVerdict(value=1.0))]),
    "from a rank": Decoder(
        typed(FromRank), [msgspec.msgpack.encode(said) for said in (Hello(1, 2), RankReply(b"x"))]
    ),
    "to a rank": Decoder(typed(ToRank), [msgspec.msgpack.encode(UpdateCommand(3))]),
    "JSON": Decoder(
        lambda body: from_json(body, dict[str, list[int]], "malformed"), [b'{"a": [1, 2]}'], "json"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECODERS)
def test_damaged_messages_are_refused_or_read(name: str) -> None:
    decoder = DECODERS[name]
    for message in decoder.sound:
        decoder.read(message)
    messages = damaged(decoder.sound, decoder.format, seed=len(name))
    assert_refused_or_read(decoder.read, messages)


@pytest.mark.parametrize(
    "endpoint",
    [
        "", "http://", "tcp://h:1", "http://h:0", "http://h:99999", "http://h:x", "http://[::1",
        "http://a..b", f"http://{'a' * 70}", "http://h\0", "http://h/a b", "http://h/\r\nX: y",
        "http://h/é", "http://\ud800", f"http://h/{'a' * 5000}", "http://[zz]:1", "http://h:\u0661",
    ],
)  # fmt: skip
def test_endpoints_that_cannot_be_asked_are_refused(endpoint: str) -> None:
    with pytest.raises(PublisherFailed, match="expected an address such as http://host:port"):
        address_of(endpoint, "http", "https")


@pytest.mark.parametrize("endpoint", ["http://h", "https://10.0.0.1:8/x", "http://[::1]:7"])
def test_endpoints_that_can_be_asked_are_taken(endpoint: str) -> None:
    assert address_of(endpoint, "http", "https").hostname


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lengths": [-1, 4]}, "row 0 of the batch has -1 tokens"),
        ({"lengths": [2, 2]}, "rows of the batch have 4 tokens, its columns 3"),
        ({"loss_mask": [0, 7, 0]}, "loss mask of the batch holds 7"),
    ],
)
def test_columns_of_a_batch_that_contradict_each_other_are_refused(
    change: dict[str, list[int]], told: str
) -> None:
    frame = Frame(batch())
    columns = [np.frombuffer(buffer, np.uint8) for buffer in frame.buffers]
    places = {"lengths": (0, np.int32), "loss_mask": (8, np.uint8)}
    for name, values in change.items():
        index, dtype = places[name]
        columns[index] = np.array(values, dtype).view(np.uint8)
    with pytest.raises(WireError, match=told):
        decode_batch(encode_frame(msgspec.Raw(frame.header), columns))


def test_a_shape_of_very_many_dimensions_is_refused_before_it_is_multiplied() -> None:
    """Its product would have millions of digits."""
    entry = {"dtype": "U8", "shape": [2**53] * 200_000, "data_offsets": [0, 1]}
    with pytest.raises(WireError, match="length <= 64"):
        tensor_file(msgspec.json.encode({"a": entry}))


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"error": "no such task"}', "no such task"),
        (b'{"detail": "not found"}', "not found"),
        (b"[" * 2000, r"\[\[\["),
        (b'{"error": "' + b"\xff" * 9, "error"),
        (b"", "no reason given"),
    ],
)
def test_a_refusal_is_reported_however_it_is_written(body: bytes, told: str) -> None:
    assert re.search(told, client._reason(body))
