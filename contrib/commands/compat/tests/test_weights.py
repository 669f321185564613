"""The weight path: layout, deltas, streams, and requests that are refused."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import zmq
import zmq.asyncio
from safetensors.numpy import save_file

from astraflow_contrib_compat.weights.flat import FlatWeights, delta_body
from astraflow_contrib_compat.weights.sender import WeightSender
from astraflow_core.types import WeightSource
from astraflow_wire.http.server import Server

RNG = np.random.default_rng(0)
TABLES = {
    "b": RNG.normal(size=(3, 5)).astype(np.float32), "a": RNG.normal(size=4).astype(np.float16),
    "scalar": np.array(2.5, np.float32),
}  # fmt: skip


def version(folder: Path, name: str, tables: dict[str, Any]) -> FlatWeights:
    path = folder / f"{name}.safetensors"
    save_file(tables, path)
    return FlatWeights.of(WeightSource("solver", 0, path, "d", 0, 0.0))


def rebuilt(flat: FlatWeights, buffer: bytes) -> dict[str, Any]:
    found, start = {}, 0
    for name, shape, dtype in flat.tensors:
        kind = np.dtype(dtype)
        count = int(np.prod(shape))
        found[name] = np.frombuffer(buffer, kind, count, start).reshape(shape)
        start += count * kind.itemsize
    assert start == len(buffer)
    return found


def test_the_layout_is_that_of_the_file(tmp_path: Path) -> None:
    flat = version(tmp_path, "0", TABLES)
    raw = flat.source.path.read_bytes()[flat.start :]
    assert len(raw) == flat.length == 60 + 8 + 4
    for name, table in rebuilt(flat, raw).items():
        assert np.array_equal(table, TABLES[name])


def applied(old: bytes, body: bytes) -> bytes:
    """A delta, as the description says."""
    count, size, flags, zero = struct.unpack("<QHHi", body[:16])
    assert (size, flags, zero) == (2, 0, 0) and len(body) == 16 + 6 * count
    indices = np.frombuffer(body, "<u4", count, 16)
    assert (np.diff(indices.astype(np.int64)) > 0).all()
    words = np.frombuffer(old, "<u2").copy()
    words[indices] = np.frombuffer(body, "<u2", count, 16 + 4 * count)
    return words.tobytes()


def test_a_delta_makes_the_new_version_of_the_old_one(tmp_path: Path) -> None:
    old = version(tmp_path, "0", TABLES)
    changed = {name: table.copy() for name, table in TABLES.items()}
    changed["b"][1, 2] += 1
    changed["a"][3] = 0
    new = version(tmp_path, "1", changed)
    body = delta_body(old, new)
    assert body is not None
    before, after = (each.source.path.read_bytes()[each.start :] for each in (old, new))
    assert applied(before, body) == after
    nothing = delta_body(new, new)
    assert nothing is not None and applied(after, nothing) == after


def test_no_delta_of_another_layout_or_of_more_than_half(tmp_path: Path) -> None:
    old = version(tmp_path, "0", TABLES)
    assert delta_body(old, version(tmp_path, "1", {**TABLES, "c": TABLES["a"]})) is None
    assert (
        delta_body(old, version(tmp_path, "2", {n: np.asarray(t + 1) for n, t in TABLES.items()}))
        is None
    )
    odd = {"o": np.ones(3, np.uint8)}
    assert delta_body(version(tmp_path, "3", odd), version(tmp_path, "4", odd)) is None


@contextlib.asynccontextmanager
async def serving(host: str = "127.0.0.1", transfer_s: float = 5.0) -> AsyncIterator[Any]:
    """A sender, and calls of it: status and body."""
    sender = WeightSender(host, "127.0.0.1", transfer_s)
    async with (
        Server(sender.app, "127.0.0.1", 0) as server,
        aiohttp.ClientSession() as client,
    ):

        async def call(path: str, body: Any = None) -> tuple[int, Any]:
            method = "GET" if body is None else "POST"
            async with client.request(method, server.url + path, json=body) as answer:
                return answer.status, await answer.json()

        yield sender, call
    sender.close()


def registration(flat: FlatWeights, **changed: Any) -> dict[str, Any]:
    return {
        "sglang_http_host": "127.0.0.1", "sglang_http_port": 9, "session_ids": ["127.0.0.1:9"], "buffer_ptr": 1,
        "buffer_length": flat.length, "zmq_endpoint": "127.0.0.1", "zmq_port": 9, "handshake_ports": [],
        "sender_group_index": 0, **changed,
    }  # fmt: skip


def test_weights_go_to_the_registered_host_and_only_during_an_update(tmp_path: Path) -> None:
    flat = version(tmp_path, "0", TABLES)

    async def script() -> None:
        async with serving() as (sender, call):
            for path, body in (
                ("/get_buffer_info", None),
                ("/request_transfer", {"instance_id": "x"}),
            ):
                status, told = await call(path, body)
                assert status == 503 and "no update" in told["error"]
            async with sender.offering(1, flat):
                for changed, reason in (
                    ({"session_ids": ["192.0.2.1:9"]}, "not the host"), ({"zmq_endpoint": "192.0.2.1"}, "not the host"),
                ):  # fmt: skip
                    status, told = await call(
                        "/register_sglang_instance", registration(flat, **changed)
                    )
                    assert status == 403 and reason in told["error"]
                for changed, reason in (
                    ({"buffer_length": 1}, "the weights have 72 bytes"), ({"session_ids": []}, "session_ids"),
                    ({"session_ids": ["127.0.0.1"]}, "host:port"), ({"session_ids": ["127.0.0.1:0"]}, "port"),
                    ({"session_ids": ["127.0.0.1:" + ":".join(["9"] * 99)]}, "host:port"),
                ):  # fmt: skip
                    status, told = await call(
                        "/register_sglang_instance", registration(flat, **changed)
                    )
                    assert status == 400 and reason in told["error"]
                status, told = await call("/request_transfer", {"instance_id": "127.0.0.1:9"})
                assert status == 200 and not told["ok"] and "has not registered" in told["error"]
        # A RaaS on this host registers with the host's name, which may resolve to another of its addresses.
        async with serving("127.0.1.1") as (sender, call), sender.offering(1, flat):
            status, told = await call("/get_buffer_info")
            assert status == 200
            types = {dtype for _, (_, dtype) in told["tensors_meta"]}
            assert types <= set(np.sctypeDict), "getattr(torch, ...) finds them by these names"
            for host, expected in (("127.0.0.1", 200), ("192.0.2.1", 403)):
                changed = {"session_ids": [f"{host}:9"], "zmq_endpoint": host}
                body = registration(flat, **changed)
                assert (await call("/register_sglang_instance", body))[0] == expected
        async with serving("192.0.2.1") as (sender, call), sender.offering(1, flat):
            status, told = await call("/get_buffer_info")
            assert status == 403 and "host of the registered RaaS" in told["error"]

    asyncio.run(script())


@pytest.mark.parametrize("acknowledged", [True, False])
def test_several_streams_make_one_buffer(tmp_path: Path, acknowledged: bool) -> None:
    """The description's receiver, with three streams; without its acknowledgement nothing was delivered."""
    flat = version(tmp_path, "0", TABLES)
    buffer = bytearray(flat.length)

    async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        offset, length = struct.unpack("<QQ", await reader.readexactly(16))
        buffer[offset : offset + length] = await reader.readexactly(length)
        writer.write(b"\x01" if acknowledged else b"\x00")
        writer.close()

    async def script() -> None:
        signals = zmq.asyncio.Context.instance().socket(zmq.PULL)
        port = signals.bind_to_random_port("tcp://127.0.0.1")
        async with serving() as (sender, call), sender.offering(5, flat) as offer:
            servers = [await asyncio.start_server(receive, "127.0.0.1", 0) for _ in range(3)]
            ports = [server.sockets[0].getsockname()[1] for server in servers]
            session = ":".join(["127.0.0.1", *map(str, ports)])
            asked = registration(flat, session_ids=[session], zmq_port=port)
            status, told = await call("/register_sglang_instance", asked)
            assert status == 200 and told["trainer_buffer_length"] == 2 * flat.length
            status, told = await call(
                "/request_transfer", {"instance_id": "127.0.0.1:9", "mode": "delta"}
            )
            assert not told["ok"] and told["fallback"] == "full"
            _, told = await call(
                "/request_transfer", {"instance_id": "127.0.0.1:9", "mode": "full"}
            )
            assert told["ok"] == offer.delivered == acknowledged and told["version"] == 5
            signal = await asyncio.wait_for(signals.recv_multipart(), 10)
            assert signal == [b"0", b"0" if acknowledged else b"1"]
            if acknowledged:
                assert buffer == flat.source.path.read_bytes()[flat.start :]
            else:
                assert "without an acknowledgement" in told["error"]
            for server in servers:
                server.close()
        assert sender.number == (5 if acknowledged else 0)
        signals.close(0)

    asyncio.run(script())


def test_a_receiver_that_is_silent_is_not_waited_for_forever(tmp_path: Path) -> None:
    flat = version(tmp_path, "0", TABLES)

    async def script() -> None:
        quiet = asyncio.Event()

        async def receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await quiet.wait()
            writer.close()

        async with serving(transfer_s=0.2) as (sender, call), sender.offering(1, flat):
            server = await asyncio.start_server(receive, "127.0.0.1", 0)
            port = server.sockets[0].getsockname()[1]
            await call(
                "/register_sglang_instance", registration(flat, session_ids=[f"127.0.0.1:{port}"])
            )
            _, told = await call("/request_transfer", {"instance_id": "127.0.0.1:9"})
            assert not told["ok"] and "did not acknowledge within 0.2 s" in told["error"]
            quiet.set()
            server.close()

    asyncio.run(script())
