"""The rollout service's half of the public weight path: asks a sender, receives over TCP, and keeps only what it can verify."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Mapping
from typing import Annotated, Any

import aiohttp
import numpy as np
import zmq
import zmq.asyncio
from pydantic import BaseModel, Field, ValidationError

from astraflow_contrib_compat.bodies import read_bounded
from astraflow_contrib_compat.weights.flat import DELTA_HEAD, WIDE_INDICES, WORD
from astraflow_contrib_compat.weights.sender import ACK, HEAD, SUCCESS
from astraflow_core.errors import WeightsError

MOST_JSON = 64 << 20
MOST_SIGNAL, MOST_SIGNALS = 64, 16
"""Bytes of a part of a signal, and signals that wait: anybody may send some, which decide nothing."""
Layout = tuple[tuple[str, tuple[int, ...], str], ...]
"""Name, shape and type of each tensor, in the order of the buffer."""


class BufferInfo(BaseModel):
    """Answer of ``/get_buffer_info``."""

    single_buffer_length: Annotated[int, Field(ge=1)]
    tensors_meta: list[tuple[str, tuple[list[int], str]]]


class PublicWeights:
    """Versions of one model from senders of the public protocol. ``expected``: name → shape and type of the tensors that the
    model has, ``length`` bytes in all; others are refused before a byte of them is received. ``shown``: the host by which a
    sender reaches this process, which listens on ``bind``."""

    def __init__(
        self,
        expected: Mapping[str, tuple[tuple[int, ...], str]],
        length: int,
        bind: str,
        shown: str,
        transfer_s: float,
    ) -> None:
        self._expected, self._length = dict(expected), length
        self._bind, self._shown, self._transfer_s = bind, shown, transfer_s
        self.version = 0
        self._buffer: bytearray | None = None
        self._endpoint, self._layout = "", Layout()
        self._incoming: _Incoming | None = None
        self._server: asyncio.Server | None = None
        self._signals = zmq.asyncio.Context()
        self._channel: Any = None
        self._signal_port = 0
        # Every call has its own deadline.
        no_limit = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(
            trust_env=False, auto_decompress=False, timeout=no_limit
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._server is not None:
            self._server.close()
        self._signals.destroy(linger=0)
        await self._session.close()

    async def pull(self, endpoint: str, number: int) -> tuple[Layout, bytearray, str]:
        """Version ``number`` of the sender at ``endpoint``: layout, bytes, and ``"full"`` or ``"delta"``. Raises
        :class:`WeightsError` unless every byte came once and the sender had this version before and after."""
        try:
            async with asyncio.timeout(self._transfer_s):
                if endpoint != self._endpoint:
                    await self._register(endpoint)
                return await self._pull(number)
        except TimeoutError as error:
            self._forget()
            raise WeightsError(f"the sender {endpoint} took over {self._transfer_s:g} s") from error
        except (aiohttp.ClientError, OSError, ValidationError, KeyError, struct.error) as error:
            self._forget()
            raise WeightsError(f"the sender {endpoint}: {type(error).__name__}: {error}") from error
        except WeightsError:
            self._forget()
            raise

    def _forget(self) -> None:
        self._endpoint, self._buffer, self._incoming, self.version = "", None, None, 0

    async def _register(self, endpoint: str) -> None:
        self._forget()
        self._base = f"http://{endpoint}"
        info = BufferInfo.model_validate(await self._call("/get_buffer_info"))
        layout = tuple((name, tuple(shape), kind) for name, (shape, kind) in info.tensors_meta)
        told = {name: (shape, kind) for name, shape, kind in layout}
        if told != self._expected or len(layout) != len(told):
            wrong = sorted(told.items() ^ self._expected.items())[:1]
            raise WeightsError(
                f"the sender has other tensors than the model of the policy: {str(wrong)[:200]}"
            )
        if info.single_buffer_length != self._length:
            raise WeightsError(
                f"the sender has {info.single_buffer_length} bytes, the model {self._length}"
            )
        if self._server is None:
            self._server = await asyncio.start_server(self._receive, self._bind, 0)
            self._channel = self._signals.socket(zmq.PULL)
            self._channel.setsockopt(zmq.MAXMSGSIZE, MOST_SIGNAL)
            self._channel.setsockopt(zmq.RCVHWM, MOST_SIGNALS)
            self._signal_port = self._channel.bind_to_random_port(f"tcp://{self._bind}")
        port = self._server.sockets[0].getsockname()[1]
        answer = await self._call(
            "/register_sglang_instance",
            {
                "sglang_http_host": self._shown, "sglang_http_port": port, "session_ids": [f"{self._shown}:{port}"],
                "buffer_ptr": 0, "buffer_length": self._length, "zmq_endpoint": self._shown,
                "zmq_port": self._signal_port, "handshake_ports": [], "sender_group_index": 0,
            },
        )  # fmt: skip
        if not answer.get("trainer_session_ids"):
            raise WeightsError("the sender did not register this receiver")
        self._layout, self._endpoint = layout, endpoint
        self._instance = f"{self._shown}:{port}"
        host = endpoint.rpartition(":")[0].strip("[]")
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        self._peers = {str(address[4][0]) for address in found}

    async def _pull(self, number: int) -> tuple[Layout, bytearray, str]:
        able = await self._call("/get_capabilities")
        if able.get("version") != number:
            raise WeightsError(f"the sender has version {able.get('version')}, expected {number}")
        follows = able.get("delta_ready") is True and able.get("delta_base_version") == self.version
        mode = (
            "delta" if follows and self._buffer is not None and self._length % WORD == 0 else "full"
        )
        while await self._channel.poll(0):
            await self._channel.recv_multipart()  # of a transfer that was given up
        self._incoming = _Incoming(self._length)
        answer = await self._call(
            "/request_transfer", {"instance_id": self._instance, "mode": mode}
        )
        if answer.get("ok") is not True or answer.get("version") != number:
            raise WeightsError(f"no transfer of version {number}: {str(answer)[:300]}")
        signal = await self._channel.recv_multipart()
        if signal[1:] != [SUCCESS]:
            raise WeightsError(f"the sender signalled that the transfer of version {number} failed")
        after = await self._call("/get_version")
        if after.get("version") != number:
            raise WeightsError(
                f"the sender switched to version {after.get('version')} while it sent {number}"
            )
        incoming, self._incoming = self._incoming, None
        size = answer.get("delta_size") if mode == "delta" else self._length
        if not isinstance(size, int) or not incoming.complete(size):
            raise WeightsError(f"not every byte of version {number} came exactly once")
        if mode == "delta":
            assert self._buffer is not None
            buffer = await asyncio.to_thread(_applied, self._buffer, incoming.data, size)
        else:
            buffer = incoming.data
        self._buffer, self.version = buffer, number
        return self._layout, buffer, mode

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One stream; unrequested data, or data from elsewhere, is not read."""
        incoming, peer = self._incoming, writer.get_extra_info("peername")[0]
        try:
            if incoming is None or peer not in self._peers:
                return
            async with asyncio.timeout(self._transfer_s):
                start, size = HEAD.unpack(await reader.readexactly(HEAD.size))
                if incoming.begin(start, size):
                    at, end = start, start + size
                    while at < end and (piece := await reader.read(min(end - at, 1 << 20))):
                        incoming.data[at : at + len(piece)] = piece
                        at += len(piece)
                    if at == end:
                        incoming.received.append((start, end))
                        writer.write(ACK)
                        await writer.drain()
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            pass  # the range is missing, which `complete` reports
        finally:
            writer.close()

    async def _call(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        method = "GET" if body is None else "POST"
        async with self._session.request(
            method, self._base + path, json=body, allow_redirects=False
        ) as response:
            if (text := await read_bounded(response, MOST_JSON)) is None:
                raise WeightsError(f"{method} {path}: its answer is over {MOST_JSON} bytes")
            try:
                found = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise WeightsError(f"{method} {path}: its answer is not JSON") from error
            if response.status != 200 or not isinstance(found, dict):
                raise WeightsError(f"{method} {path}: status {response.status}: {str(found)[:200]}")
            return found


class _Incoming:
    """The bytes of one transfer, and which of them came."""

    def __init__(self, length: int) -> None:
        self.data = bytearray(length)
        self.received: list[tuple[int, int]] = []
        self.refused = False
        self._begun: list[tuple[int, int]] = []

    def begin(self, start: int, size: int) -> bool:
        """Whether a range is allowed: within the buffer, and without overlap with earlier ones."""
        end = start + size
        beside = all(end <= other or other_end <= start for other, other_end in self._begun)
        if not size or end > len(self.data) or not beside:
            self.refused = True
            return False
        self._begun.append((start, end))
        return True

    def complete(self, size: int) -> bool:
        """Whether bytes 0 to ``size`` came, and no others."""
        at = 0
        for start, end in sorted(self.received):
            if start != at:
                return False
            at = end
        return at == size and len(self.received) == len(self._begun) and not self.refused


def _applied(buffer: bytearray, body: bytearray, size: int) -> bytearray:
    """A copy of ``buffer`` with the words of a delta of ``size`` bytes."""
    count, element, flags, reserved = DELTA_HEAD.unpack_from(body)
    width = 8 if flags & WIDE_INDICES else 4
    expected = DELTA_HEAD.size + count * (width + WORD)
    if element != WORD or reserved or flags & ~WIDE_INDICES or size != expected:
        raise WeightsError(f"a delta with a wrong header: {count} words in {size} bytes")
    indices = np.frombuffer(body, f"<u{width}", count, DELTA_HEAD.size)
    found = bytearray(buffer)
    words = np.frombuffer(found, "<u2")
    if count and (int(indices[-1]) >= len(words) or (indices[1:] <= indices[:-1]).any()):
        raise WeightsError("a delta whose indices are not ascending, or beyond the buffer")
    words[indices] = np.frombuffer(body, "<u2", count, DELTA_HEAD.size + count * width)
    return found
