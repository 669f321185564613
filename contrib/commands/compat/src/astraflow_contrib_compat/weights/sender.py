"""The trainer's half of the public weight path, for one policy and one rollout service: it learns over HTTP where to
send, connects there over TCP, and signals the end over ZeroMQ."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import zmq
import zmq.asyncio
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from astraflow_contrib_compat.bodies import read_json
from astraflow_contrib_compat.weights.flat import FlatWeights, delta_body
from astraflow_core.errors import Refused, WeightsError
from astraflow_wire.http.server import create_app

log = logging.getLogger("astraflow.compat")
HEAD = struct.Struct("<QQ")
ACK = b"\x01"
SUCCESS, FAILURE = b"0", b"1"
MOST_BODY = 1 << 16
MOST_STREAMS = 64
Port = Annotated[int, Field(ge=1, le=65535)]


class ReceiverRegistration(BaseModel):
    """Body of ``/register_sglang_instance``."""

    sglang_http_host: Annotated[str, Field(max_length=256)]
    sglang_http_port: int
    session_ids: Annotated[
        list[Annotated[str, Field(max_length=1024)]], Field(max_length=1, min_length=1)
    ]
    buffer_length: int
    zmq_endpoint: Annotated[str, Field(max_length=256)]
    zmq_port: Port
    buffer_ptr: int = 0
    handshake_ports: list[int] = []
    sender_group_index: int = 0


class TransferRequest(BaseModel):
    """Body of ``/request_transfer``."""

    instance_id: Annotated[str, Field(max_length=512)]
    mode: Literal["full", "delta"] = "full"


@dataclass(frozen=True)
class RegisteredReceiver:
    """Where a registered receiver wants its bytes, and the signal."""

    host: str
    ports: tuple[int, ...]
    zmq_address: str
    length: int


@dataclass
class OfferedVersion:
    """A version under the ``number`` that the RaaS knows it by; ``delta`` is from ``base`` on. ``on_delivery`` is called
    before the RaaS can know that it has the whole version."""

    number: int
    flat: FlatWeights
    delta: bytes | None
    base: int
    delta_s: float
    delivered: bool = False
    problem: str = "it asked for no transfer"
    on_delivery: Callable[[], None] = lambda: None


class WeightSender:
    """Serves the weights that :meth:`offering` offers, to callers from the addresses of ``host`` alone, and sends them
    nowhere else: whoever may reach this port gets nothing while no update is under way. ``shown``: the host by which the
    RaaS reaches this process. The registration of a receiver is valid as long as this object."""

    def __init__(self, host: str, shown: str, transfer_s: float) -> None:
        self._host, self._shown, self._transfer_s = host, shown, transfer_s
        self._offer: OfferedVersion | None = None
        self._last: OfferedVersion | None = None
        self._receivers: dict[str, RegisteredReceiver] = {}
        self._sending = asyncio.Lock()
        self._signals = zmq.asyncio.Context()
        self.app = self._app()

    def close(self) -> None:
        """Close the sockets of signals."""
        self._signals.destroy(linger=0)

    @property
    def number(self) -> int:
        """The number of the newest version that was delivered; 0 before."""
        return self._last.number if self._last is not None else 0

    @contextlib.asynccontextmanager
    async def offering(self, number: int, flat: FlatWeights) -> AsyncIterator[OfferedVersion]:
        """Offer a version within the context. If it was delivered then, the next delta is from it on."""
        last, began = self._last, time.monotonic()
        delta = None
        if last is not None:
            delta = await asyncio.to_thread(delta_body, last.flat, flat)
        took_s = time.monotonic() - began
        offer = self._offer = OfferedVersion(
            number, flat, delta, last.number if last else 0, took_s
        )
        try:
            yield offer
        finally:
            self._offer = None
            # After a failed transfer the contents of the buffer of the RaaS are unknown.
            self._last = offer if offer.delivered else None

    def forget(self) -> None:
        """The last version no longer exists, so no delta can be computed from it."""
        self._last = None

    # --- HTTP -----------------------------------------------------------------------------------

    def _app(self) -> FastAPI:
        app = create_app("weights of the public protocol", "", MOST_BODY)
        app.add_api_route("/get_version", self._get_version)
        app.add_api_route("/get_buffer_info", self._get_buffer_info)
        app.add_api_route("/get_capabilities", self._get_capabilities)
        app.add_api_route("/register_sglang_instance", self._register, methods=["POST"])
        app.add_api_route("/request_transfer", self._request_transfer, methods=["POST"])
        return app

    async def _get_version(self, request: Request) -> dict[str, Any]:
        return {"version": (await self._offered(request)).number}

    async def _get_buffer_info(self, request: Request) -> dict[str, Any]:
        flat = (await self._offered(request)).flat
        meta = [[name, [list(shape), dtype]] for name, shape, dtype in flat.tensors]
        return {"single_buffer_length": flat.length, "tensors_meta": meta}

    async def _get_capabilities(self, request: Request) -> dict[str, Any]:
        offer = await self._offered(request)
        told: dict[str, Any] = {"strategies": ["full", "delta"], "version": offer.number}
        told["delta_ready"] = offer.delta is not None
        if offer.delta is not None:
            told |= {"delta_base_version": offer.base, "delta_version": offer.number} | _facts(
                offer
            )
        return told

    async def _register(self, request: Request) -> JSONResponse:
        offer = await self._offered(request)
        asked = await read_json(request, ReceiverRegistration)
        if asked.buffer_length != offer.flat.length:
            raise Refused(
                400,
                f"buffer_length is {asked.buffer_length}, the weights have {offer.flat.length} bytes",
            )
        host, ports = _session(asked.session_ids[0])
        for place in (host, asked.zmq_endpoint):
            await self._check_host(place)
        address = f"tcp://{asked.zmq_endpoint}:{asked.zmq_port}"
        key = f"{asked.sglang_http_host}:{asked.sglang_http_port}"
        self._receivers = {key: RegisteredReceiver(host, ports, address, asked.buffer_length)}
        return JSONResponse(
            {
                "trainer_global_rank": 0,
                "trainer_world_size": 1,
                "trainer_session_ids": [[f"{self._shown}:0"]],
                "trainer_buffer_ptr": 0,
                "trainer_buffer_length": 2 * offer.flat.length,
                "trainer_hostname": self._shown,
                "trainer_rpc_port": 0,
            }
        )

    async def _request_transfer(self, request: Request) -> dict[str, Any]:
        offer = await self._offered(request)
        asked = await read_json(request, TransferRequest)
        receiver = self._receivers.get(asked.instance_id)
        if receiver is None or receiver.length != offer.flat.length:
            return _failed(
                offer, f"{asked.instance_id} has not registered for weights of this size"
            )
        if asked.mode == "delta" and offer.delta is None:
            return {**_failed(offer, "no delta"), "fallback": "full", "reason": "delta_not_ready"}
        async with self._sending:
            problem = await self._transfer(offer, receiver, asked.mode)
            offer.delivered, offer.problem = not problem, problem
            if offer.delivered:
                offer.on_delivery()
            await self._signal(receiver, FAILURE if problem else SUCCESS)
        if problem:
            return _failed(offer, problem)
        told: dict[str, Any] = {"ok": True, "version": offer.number, "mode": asked.mode}
        if asked.mode == "delta":
            told |= {"delta_base_version": offer.base, **_facts(offer)}
            told |= {"delta_size": told["delta_size_bytes"], "sparsity": told["delta_sparsity"]}
            told |= {"num_nonzero": told["delta_num_nonzero"], "compute_time": offer.delta_s}
        return told

    async def _offered(self, request: Request) -> OfferedVersion:
        peer = request.client.host if request.client else ""
        if not await self._is_host_of(frozenset({peer})):
            raise Refused(403, "weights are sent to the host of the registered RaaS alone")
        if self._offer is None:
            raise Refused(503, "no update of the weights is in progress")
        return self._offer

    async def _check_host(self, host: str) -> None:
        if not await self._is_host_of(await self._addresses(host)):
            raise Refused(
                403, f"{host[:256]} is not the host that the RaaS registered with, {self._host}"
            )

    async def _is_host_of(self, addresses: Collection[str]) -> bool:
        """Whether all are addresses of the registered host. This host has several: a RaaS on it registers with a name that may
        stand for 127.0.1.1, and receives at the address of a network."""
        own = await self._addresses(self._host)
        here = any(map(_is_local, own))
        return all(each in own or (here and _is_local(each)) for each in addresses)

    async def _addresses(self, host: str) -> set[str]:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise Refused(400, f"the host {host[:256]} is not known here: {error}") from error
        return {str(address[4][0]) for address in found}

    # --- TCP and ZeroMQ -------------------------------------------------------------------------

    async def _transfer(
        self, offer: OfferedVersion, receiver: RegisteredReceiver, mode: str
    ) -> str:
        """Why the bytes did not arrive; empty if all streams were acknowledged."""
        body = offer.delta if mode == "delta" else offer.flat
        assert body is not None
        try:
            async with asyncio.timeout(self._transfer_s), asyncio.TaskGroup() as streams:
                for port, (start, end) in zip(
                    receiver.ports, _chunks(_length(body), len(receiver.ports)), strict=True
                ):
                    streams.create_task(_send(receiver.host, port, start, end, body))
        except TimeoutError:
            return f"the receiver did not acknowledge within {self._transfer_s:g} s"
        except ExceptionGroup as errors:
            wrong = errors.exceptions[0]
            if not isinstance(wrong, OSError | WeightsError):
                raise
            return f"the transfer failed: {wrong}"
        return ""

    async def _signal(self, receiver: RegisteredReceiver, status: bytes) -> None:
        with self._signals.socket(zmq.PUSH) as channel:
            channel.setsockopt(zmq.LINGER, int(1000 * min(self._transfer_s, 10)))
            channel.connect(receiver.zmq_address)
            await channel.send_multipart([b"0", status])


def _is_local(address: str) -> bool:
    """Whether it is an address of this host, which can be bound."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as tried:
            tried.bind((address, 0))
    except OSError:
        return False
    return True


def _length(body: bytes | FlatWeights) -> int:
    return body.length if isinstance(body, FlatWeights) else len(body)


def _chunks(length: int, count: int) -> list[tuple[int, int]]:
    """Start and end of each of ``count`` chunks, of which the last takes the remainder."""
    each = length // count
    return [(i * each, length if i == count - 1 else (i + 1) * each) for i in range(count)]


async def _send(host: str, port: int, start: int, end: int, body: bytes | FlatWeights) -> None:
    """One stream: a header, the bytes, and the receiver's acknowledgement."""
    loop = asyncio.get_running_loop()
    (family, kind, _, _, address), *_ = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    with socket.socket(family, kind) as channel:
        channel.setblocking(False)
        await loop.sock_connect(channel, address)
        await loop.sock_sendall(channel, HEAD.pack(start, end - start))
        if isinstance(body, FlatWeights):
            with body.source.path.open("rb") as file:
                sent = await loop.sock_sendfile(channel, file, body.start + start, end - start)
            if sent != end - start:
                raise WeightsError(f"the file of the version ended after {start + sent} bytes")
        else:
            await loop.sock_sendall(channel, memoryview(body)[start:end])
        if await loop.sock_recv(channel, 1) != ACK:
            raise WeightsError("the receiver closed its connection without an acknowledgement")


def _session(text: str) -> tuple[str, tuple[int, ...]]:
    """Host and ports of ``host:port`` or ``host:p1:…:pN``."""
    host, *ports = text.split(":")
    if not host or not 1 <= len(ports) <= MOST_STREAMS or not all(p.isdecimal() for p in ports):
        raise Refused(400, f"the session {text[:100]!r} is not host:port or host:port:port…")
    numbers = tuple(map(int, ports))
    if not all(1 <= number <= 65535 for number in numbers):
        raise Refused(400, f"the session {text[:100]!r} has an invalid port")
    return host, numbers


def _facts(offer: OfferedVersion) -> dict[str, Any]:
    assert offer.delta is not None
    count = int.from_bytes(offer.delta[:8], "little")
    words = max(1, offer.flat.length // 2)
    return {
        "delta_sparsity": 1 - count / words,
        "delta_num_nonzero": count,
        "delta_size_bytes": len(offer.delta),
    }


def _failed(offer: OfferedVersion, reason: str) -> dict[str, Any]:
    return {"ok": False, "version": offer.number, "error": reason}
