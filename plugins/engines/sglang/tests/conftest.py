"""A stand-in for the protocol of an SGLang server, written from the sources of SGLang 0.5.23, not from a
running one: only a test on a GPU can show that the real server behaves so. It samples from a tiny model.

What it is honest about: bodies with fields that neither the engine nor a router should send are refused; a pause without a mode aborts; an update while
nothing is paused takes the writer's lock, that is, waits for what runs and holds back what comes; requests that are
frozen in place keep their blocks, so that a flush fails; `/health` samples, so a paused server is not well, unless
its environment says otherwise; retracted ones are computed anew; `ignore_eos` disables
stop tokens of every sort; each event of a stream repeats all that was sampled."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from safetensors.numpy import save_file

from astraflow_core.testing.tiny_decoder import Sequence, TinyDecoder
from astraflow_core.testing.tiny_model import write_tiny_model
from astraflow_core.types import Sampling

FIELDS = {
    "/generate": {
        "text", "input_ids", "rid", "sampling_params", "return_logprob", "logprob_start_len",
        "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs", "return_sampling_mask",
        "stream",
        # What sglang-router 0.3.2 fills in. By its published schema SGLang passes over what it does not know.
        "model", "background", "log_metrics", "no_logs", "return_bytes", "return_entropy",
        "return_hidden_states",
    },
    "/pause_generation": {"mode"},
    "/continue_generation": {"torch_empty_cache"},
    "/abort_request": {"rid", "abort_all"},
    "/update_weights_from_tensor": {
        "serialized_named_tensors", "load_format", "flush_cache", "abort_all_requests",
        "weight_version", "selector", "torch_empty_cache",
    },
    "/init_weights_update_group": {
        "master_address", "master_port", "rank_offset", "world_size", "group_name", "backend",
    },
    "/update_weights_from_distributed": {
        "names", "dtypes", "shapes", "group_name", "flush_cache", "abort_all_requests",
        "weight_version", "load_format", "selector", "torch_empty_cache",
    },
    "/update_weights_from_disk": {
        "model_path", "load_format", "abort_all_requests", "weight_version", "is_async",
        "torch_empty_cache", "keep_pause", "recapture_cuda_graph", "token_step", "flush_cache",
        "manifest",
    },
}  # fmt: skip
SAMPLING = {
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "ignore_eos", "stop_token_ids", "stop",
}  # fmt: skip

HEALTH = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"


@dataclass(eq=False)
class Running:
    """A request that holds the reader's lock."""

    rid: str
    sequence: Sequence
    entries: list[list[Any]] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    aborted: bool = False

    def spans(self) -> list[dict[str, Any]]:
        spans: list[dict[str, Any]] = []
        for at, version in enumerate(self.versions):
            if not spans or spans[-1]["version"] != version:
                spans.append({"version": version, "start": at, "end": at})
            spans[-1]["end"] = at + 1
        return spans


class SGLangStandIn:
    """``refuse`` are paths whose next calls fail; ``calls`` are (path, body) as they came; ``frozen`` makes it
    run requests without sampling anything."""

    def __init__(self, model: Path, port: int = 0) -> None:
        self._port = port
        self._received: dict[str, Any] = {}
        self._group: Any = None
        self.decoder = TinyDecoder(model)
        self.eos = self.decoder.config["eos_token_id"]
        self.version = "default"
        self.paused: str | None = None
        self.running: dict[str, Running] = {}
        self.calls: list[tuple[str, Any]] = []
        self.refuse: list[str] = []
        self.frozen = False
        self.health_samples = os.environ.get(HEALTH) != "0"
        self.info: dict[str, Any] = {"version": "0.5.23"}
        self.routes = dict.fromkeys(FIELDS, "")
        self.repeats = True
        self.delay_s = 0.0005
        self.url = ""
        self._writer = False
        self._changed = asyncio.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def bodies(self, path: str) -> list[Any]:
        return [body for called, body in self.calls if called == path]

    async def _listen(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/openapi.json", self._describe)
        for path, handler in {
            "/generate": self._generate,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/abort_request": self._abort,
            "/update_weights_from_disk": self._update,
            "/update_weights_from_tensor": self._update_from_tensors,
            "/init_weights_update_group": self._join,
            "/update_weights_from_distributed": self._update_from_broadcast,
        }.items():
            app.router.add_post(path, self._checked(path, handler))
        app.router.add_post("/flush_cache", self._flush)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def _checked(self, path: str, handler: Any) -> Any:
        async def checked(request: web.Request) -> web.StreamResponse:
            body = await request.json()
            self.calls.append((path, body))
            unknown = body.keys() - FIELDS[path]
            unknown |= body.get("sampling_params", {}).keys() - SAMPLING
            if unknown or path in self.refuse:
                if path in self.refuse:
                    self.refuse.remove(path)
                return web.json_response({"error": f"unknown {sorted(unknown)}"}, status=400)
            response: web.StreamResponse = await handler(request, body)
            return response

        return checked

    async def _health(self, request: web.Request) -> web.Response:
        # The real one says so after 20 s.
        return web.Response(status=503 if self.health_samples and self.paused else 200)

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(self.info)

    async def _describe(self, request: web.Request) -> web.Response:
        return web.json_response({"paths": self.routes})

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(holds)

    async def _pause(self, request: web.Request, body: Any) -> web.Response:
        mode = body.get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            return web.json_response({"error": f"mode {mode!r}"}, status=400)
        if mode == "abort":
            while self.running:
                for running in self.running.values():
                    running.aborted = True
                self.paused = None  # they end by a step
                await self._tell()
                await asyncio.sleep(0.001)
        if mode == "retract":
            for running in self.running.values():
                running.sequence.forget()
        self.paused = mode
        return web.json_response({"message": "paused", "status": "ok"})

    async def _continue(self, request: web.Request, body: Any) -> web.Response:
        self.paused = None
        await self._tell()
        return web.json_response({"message": "continued", "status": "ok"})

    async def _abort(self, request: web.Request, body: Any) -> web.Response:
        for rid, running in self.running.items():
            if body.get("abort_all") or (body.get("rid") and rid == body["rid"]):
                running.aborted = True
        await self._tell()
        return web.Response()

    async def _flush(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self._flushes() else 400)

    def _flushes(self) -> bool:
        return not self.running or self.paused == "retract"

    async def _update(self, request: web.Request, body: Any) -> web.Response:
        if body.get("abort_all_requests"):
            for running in self.running.values():
                running.aborted = True
            await self._tell()
        if self.paused is None:
            self._writer = True
            await self._until(lambda: not self.running)
        try:
            if body.get("flush_cache", True) and not self._flushes():
                return web.json_response({"success": False, "message": "cannot flush"}, status=400)
            (file,) = Path(body["model_path"]).glob("*.safetensors")
            if not (file.parent / "config.json").is_file():
                return web.json_response({"success": False, "message": "no config"}, status=400)
            self.decoder.load(file)
            self.version = body.get("weight_version") or self.version
            if not body.get("keep_pause"):
                self.paused = None
        finally:
            self._writer = False
            await self._tell()
        return web.json_response({"success": True, "message": "", "num_paused_requests": 0})

    async def _update_from_tensors(self, request: web.Request, body: Any) -> web.Response:
        (given,) = body["serialized_named_tensors"]  # one for each worker
        return await self._take(body, ForkingPickler.loads(base64.b64decode(given)))

    async def _join(self, request: web.Request, body: Any) -> web.Response:
        def join() -> Any:
            """As SGLang's ``init_custom_process_group``."""
            from torch.distributed import PrefixStore, TCPStore, distributed_c10d

            address, port = body["master_address"], body["master_port"]
            store = TCPStore(address, port, body["world_size"], is_master=False)
            return distributed_c10d._new_process_group_helper(
                body["world_size"], body["rank_offset"], [], body["backend"],
                PrefixStore(body["group_name"], store), group_name=body["group_name"],
                timeout=timedelta(seconds=30),
            )[0]  # fmt: skip

        self._group = await asyncio.to_thread(join)
        return web.json_response({"success": True, "message": ""})

    async def _update_from_broadcast(self, request: web.Request, body: Any) -> web.Response:
        import torch

        tensors = [
            (name, torch.zeros(shape, dtype=getattr(torch, dtype)))
            for name, dtype, shape in zip(
                body["names"], body["dtypes"], body["shapes"], strict=True
            )
        ]
        for _, tensor in tensors:
            await asyncio.to_thread(self._group.broadcast(tensor, 0).wait)
        return await self._take(body, tensors)

    async def _take(self, body: Any, tensors: Any) -> web.Response:
        """Tensors come in chunks; the last of a version brings its number."""
        assert self.paused is not None, "without a pause the writer's lock would be taken"
        if body.get("flush_cache", True) and not self._flushes():
            return web.json_response({"success": False, "message": "cannot flush"}, status=400)
        self._received |= {name: tensor.float().numpy().copy() for name, tensor in tensors}
        if version := body.get("weight_version"):
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "received.safetensors"
                save_file(self._received, file)
                self.decoder.load(file)
            self.version, self._received = version, {}
        return web.json_response({"success": True, "message": ""})

    async def _generate(self, request: web.Request, body: Any) -> web.StreamResponse:
        await self._until(lambda: not self._writer and self.paused is None)
        running = Running(body["rid"], self.decoder.sequence(body["input_ids"]))
        if not body.get("stream"):
            scores = [None, *running.sequence.scores()]
            entries = [[s, t, None] for s, t in zip(scores, body["input_ids"], strict=True)]
            meta = {"id": body["rid"], "completion_tokens": 1, "input_token_logprobs": entries,
                    "finish_reason": {"type": "length", "length": 1}}  # fmt: skip
            return web.json_response({"text": "", "output_ids": [0], "meta_info": meta})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.running[running.rid] = running
        try:
            await self._stream(response, running, body["sampling_params"])
        finally:
            del self.running[running.rid]
            await self._tell()
        return response

    async def _stream(
        self, response: web.StreamResponse, running: Running, given: dict[str, Any]
    ) -> None:
        top_k = given.get("top_k", -1)
        sampling = Sampling(
            given["max_new_tokens"],
            temperature=given["temperature"],
            top_p=given.get("top_p", 1.0),
            top_k=0 if top_k == -1 else top_k,
            min_p=given.get("min_p", 0.0),
        )
        stops = set() if given.get("ignore_eos") else {self.eos, *given.get("stop_token_ids", ())}
        reason: dict[str, Any] | None = None
        while reason is None:
            await self._until(lambda: (self.paused is None and not self.frozen) or running.aborted)
            if running.aborted:
                reason = {"type": "abort", "message": "Abort in waiting queue"}
            else:
                drawn = running.sequence.next(sampling)
                logprob = self._before_truncation(drawn, sampling)
                running.entries.append([logprob, drawn.token, None])
                running.versions.append(self.version)
                if drawn.token in stops:
                    reason = {"type": "stop", "matched": drawn.token}
                elif len(running.entries) == sampling.max_tokens:
                    reason = {"type": "length", "length": sampling.max_tokens}
            await response.write(
                b"data: " + json.dumps(self._event(running, reason)).encode() + b"\n\n"
            )
            await asyncio.sleep(self.delay_s)
        await response.write(b"data: [DONE]\n\n")

    def _before_truncation(self, drawn: Any, sampling: Sampling) -> float:
        return float(drawn.raw if sampling.temperature == 0 else drawn.tempered)

    def _event(self, running: Running, reason: Any) -> dict[str, Any]:
        entries = running.entries
        if not self.repeats:
            entries = entries[-1:] if reason is None or reason["type"] != "abort" else []
        return {
            "text": "",
            "output_ids": [entry[1] for entry in entries],
            "meta_info": {
                "id": running.rid,
                "finish_reason": reason,
                "completion_tokens": len(running.entries),
                "output_token_logprobs": entries,
                "weight_version": self.version,
                "weight_versions": running.spans(),
            },
        }


@pytest.fixture
def serving() -> Iterator[Callable[[Path], SGLangStandIn]]:
    """``serving(model)`` starts a stand-in, which ends with the test."""
    started: list[SGLangStandIn] = []

    def start(model: Path) -> SGLangStandIn:
        stand_in = SGLangStandIn(model)
        stand_in.start()
        started.append(stand_in)
        return stand_in

    yield start
    for stand_in in started:
        stand_in.stop()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder that servers and engines start with."""
    return write_tiny_model(tmp_path / "model", hidden=32, init_std=0.3, context=512)


@pytest.fixture
def servers(serving: Callable[[Path], SGLangStandIn], model: Path) -> list[SGLangStandIn]:
    """Stand-ins for the servers of two replicas."""
    return [serving(model), serving(model)]


if __name__ == "__main__":  # as the process of a server: --model-path FOLDER --port NUMBER
    given = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    SGLangStandIn(Path(given["--model-path"]), int(given["--port"])).start()
    sys.stderr.write("the stand-in is ready\n")
    threading.Event().wait()
