"""A trainer's weight sender, written from the description of the public protocol alone. It shares no code with the package
under test; ``fault`` makes it do one thing wrong."""

from __future__ import annotations

import socket
import struct
from typing import Any

import numpy as np
import zmq
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from astraflow_wire.http.server import create_app


class PublicSender:
    """Holds one table ``logits``; ``put`` makes a version of it."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.version, self.base = fault, 0, 0
        self.data = self.before = b""
        self.shape: tuple[int, ...] = ()
        self.modes: list[str] = []

    def put(self, version: int, logits: Any) -> None:
        self.base, self.before = self.version, self.data
        self.version, self.shape = version, logits.shape
        self.data = logits.astype("<f4").tobytes()

    def delta(self) -> bytes:
        old, new = np.frombuffer(self.before, "<u2"), np.frombuffer(self.data, "<u2")
        at = np.flatnonzero(old != new).astype("<u4")
        if self.fault == "descending":
            at = at[::-1]
        if self.fault == "beyond":
            at = at + len(new)
        return struct.pack("<QHHi", len(at), 2, 0, 0) + at.tobytes() + new[at % len(new)].tobytes()

    def send(self, session: str, body: bytes) -> bool:
        host, port = session.rsplit(":", 1)
        pieces = [(0, body)]
        if self.fault == "short":
            pieces = [(0, body[:-4])]
        if self.fault == "twice":
            pieces = [(0, body), (4, body[:8])]
        if self.fault == "outside":
            pieces = [(8, body)]
        done = True
        for offset, data in pieces:
            with socket.create_connection((host, int(port)), timeout=10) as channel:
                channel.sendall(struct.pack("<QQ", offset, len(data)) + data)
                done &= channel.recv(1) == b"\x01"
        return done

    def signal(self) -> None:
        with zmq.Context.instance().socket(zmq.PUSH) as channel:
            channel.connect(self.zmq)
            channel.send_multipart([b"0", b"1" if self.fault == "signal" else b"0"])
            channel.close(linger=5000)

    def app(self) -> FastAPI:
        app = create_app("public sender", "", 1 << 20)

        @app.get("/get_version")
        def get_version() -> dict[str, Any]:
            return {"version": self.version + (self.fault == "torn")}

        @app.get("/get_buffer_info")
        def get_buffer_info() -> dict[str, Any]:
            shape = [*self.shape, 1] if self.fault == "shape" else list(self.shape)
            meta = [["logits", [shape, "float32"]]]
            return {"single_buffer_length": len(self.data), "tensors_meta": meta}

        @app.get("/get_capabilities")
        def get_capabilities() -> dict[str, Any]:
            told = {"strategies": ["full", "delta"], "version": self.version}
            if self.base:
                told |= {
                    "delta_ready": True,
                    "delta_base_version": self.base,
                    "delta_version": self.version,
                }
            return told

        async def register(request: Request) -> dict[str, Any]:
            asked = await request.json()
            assert asked["buffer_length"] == len(self.data)
            (self.session,) = asked["session_ids"]
            self.zmq = f"tcp://{asked['zmq_endpoint']}:{asked['zmq_port']}"
            self.instance = f"{asked['sglang_http_host']}:{asked['sglang_http_port']}"
            return {
                "trainer_session_ids": [["127.0.0.1:1"]],
                "trainer_buffer_length": 2 * len(self.data),
            }

        def request_transfer(asked: dict[str, Any]) -> JSONResponse:
            assert asked["instance_id"] == self.instance
            body = self.delta() if asked["mode"] == "delta" else self.data
            self.modes.append(asked["mode"])
            self.send(self.session, body)
            self.signal()
            told = {"ok": True, "version": self.version, "mode": asked["mode"]}
            if asked["mode"] == "delta":
                told |= {"delta_base_version": self.base, "delta_size": len(body)}
            return JSONResponse(told)

        app.add_api_route(
            "/register_sglang_instance", register, methods=["POST"], response_model=None
        )
        app.add_api_route(
            "/request_transfer", request_transfer, methods=["POST"], response_model=None
        )
        return app
