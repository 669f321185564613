"""A stand-in for an SGLang server: its HTTP routes and what its tokenizer side does with requests, over the scheduler
of ``sglang_scheduler``. Written from the sources of SGLang 0.5.23, not from a running one: ``sglang_behaviours`` has
the table of what it does and where the sources show it, and only a test on a GPU can show that the real server behaves so.

It is stricter than the real one in one thing: bodies with fields that neither the engine nor a router should send are
refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from aiohttp import web
from sglang_pictures import sequence_of
from sglang_scheduler import Output, Refused, Req, Scheduler
from sglang_updates import Updates

from astraflow_core.types import Sampling

T = TypeVar("T")
_UPDATE = {
    "flush_cache",
    "abort_all_requests",
    "weight_version",
    "load_format",
    "torch_empty_cache",
}
FIELDS = {
    "/generate": {
        "text", "input_ids", "rid", "sampling_params", "return_logprob", "logprob_start_len",
        "top_logprobs_num", "token_ids_logprob", "return_text_in_logprobs", "return_sampling_mask",
        "stream", "image_data",
        # What sglang-router 0.3.2 fills in. By its published schema SGLang passes over what it does not know.
        "model", "background", "log_metrics", "no_logs", "return_bytes", "return_entropy",
        "return_hidden_states",
    },
    "/pause_generation": {"mode"},
    "/continue_generation": {"torch_empty_cache"},
    "/abort_request": {"rid", "abort_all"},
    "/begin_weight_update": {"selector"},
    "/end_weight_update": set(),
    "/update_weights_from_tensor": {"serialized_named_tensors", "selector"} | _UPDATE,
    "/init_weights_update_group": {
        "master_address", "master_port", "rank_offset", "world_size", "group_name", "backend",
    },
    "/destroy_weights_update_group": {"group_name"},
    "/update_weights_from_distributed": {"names", "dtypes", "shapes", "group_name", "selector"} | _UPDATE,
    "/update_weights_from_disk": {
        "model_path", "is_async", "keep_pause", "recapture_cuda_graph", "token_step", "manifest",
    } | _UPDATE,
}  # fmt: skip
SAMPLING = {
    "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "ignore_eos", "stop_token_ids", "stop",
}  # fmt: skip
HEALTH = "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"
FLAGS = ("--skip-tokenizer-init", "--disable-overlap-schedule", "--disable-radix-cache")
"""With which the engine starts it, its key ``keep`` being ``in_place``."""
AGAIN_S = 0.02
"""A pause that aborts looks so often whether everything has ended; the real one each second."""


@dataclass(eq=False)
class State:
    """A request as the tokenizer side knows it."""

    rid: str
    dispatched: bool = False
    abort_sent: bool = False
    outputs: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = False
    event: asyncio.Event = field(default_factory=asyncio.Event)


class RequestError(Exception):
    """What a request ends with that is not taken; in a stream that is an event of an answer with status 200."""


def positions_of(model: Path) -> int:
    """Those of the model in a folder."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return int(config.get("text_config", config)["max_position_embeddings"])


class SGLangStandIn:
    """``refuse`` are paths whose next calls fail; ``calls`` are (path, body) as they came; ``context`` is the most
    tokens of a sequence; ``repeats``: whether each event of a stream repeats all that was sampled."""

    def __init__(self, model: Path, port: int = 0, flags: tuple[str, ...] = FLAGS) -> None:
        self._port = port
        self.groups: dict[str, Any] = {}
        self.version = "default"
        self.is_pause = False
        self.states: dict[str, State] = {}
        self.calls: list[tuple[str, Any]] = []
        self.refuse: list[str] = []
        self._refused_after: dict[str, int] = {}
        self.health_samples = os.environ.get(HEALTH) != "0"
        self.longest = positions_of(model) - 6
        self.info: dict[str, Any] = {
            "version": "0.5.23",
            "disable_overlap_schedule": "--disable-overlap-schedule" in flags,
            "disable_radix_cache": "--disable-radix-cache" in flags,
            "skip_tokenizer_init": "--skip-tokenizer-init" in flags,
            "tokenizer_worker_num": 1,
            "pp_size": 1,
            "max_req_input_len": self.longest,
        }
        self.routes = dict.fromkeys([*FIELDS, "/flush_cache"], "")
        self.repeats = True
        self.context = 1 << 20
        self.url = ""
        self.readers = 0
        self._writers = 0
        self._changed = asyncio.Condition()  # of the readers' and writers' lock
        self._pause = asyncio.Condition()
        self._calls: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.scheduler = Scheduler(
            model, self._take, not self.info["disable_overlap_schedule"],
            not self.info["disable_radix_cache"],
        )  # fmt: skip

    @property
    def running(self) -> dict[str, Req]:
        """What the scheduler runs, by its name."""
        return {r.rid: r for r in list(self.scheduler.running) if r.finish is None}

    @property
    def known(self) -> set[str]:
        """What the scheduler has not ended, running or not."""
        return {*self.running, *(req.rid for req in list(self.scheduler.waiting))}

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        if not self._thread.is_alive():
            return
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def refuse_after(self, path: str, calls: int) -> None:
        """Refuse the call of ``path`` that comes after so many more."""
        self._refused_after[path] = calls

    def bodies(self, path: str) -> list[Any]:
        return [body for called, body in self.calls if called == path]

    def call(self, function: Callable[..., Any], *given: Any) -> None:
        """Have the scheduler do something, as by a message."""
        self._loop.call_soon_threadsafe(self.scheduler.tell, partial(function, *given))

    async def _end(self) -> None:
        self._runs.cancel()
        await self._runner.cleanup()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)

    async def _listen(self) -> None:
        self._runs = asyncio.create_task(self.scheduler.run())
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/server_info", self._info)
        app.router.add_get("/openapi.json", self._describe)
        app.router.add_post("/generate", self._generate)
        for path, handler in {
            "/pause_generation": self._pause_generation,
            "/continue_generation": self._continue_generation,
            "/abort_request": self._abort_request,
            **Updates(self).handlers,
        }.items():
            app.router.add_post(path, partial(self._control, path, handler))
        app.router.add_route("*", "/flush_cache", self._flush)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _body(self, path: str, request: web.Request) -> Any:
        body = await request.json()
        self.calls.append((path, body))
        unknown = body.keys() - FIELDS[path]
        unknown |= body.get("sampling_params", {}).keys() - SAMPLING
        if path in self._refused_after:
            self._refused_after[path] -= 1
            if self._refused_after[path] < 0:
                del self._refused_after[path]
                self.refuse.append(path)
        if path in self.refuse:
            self.refuse.remove(path)
            raise Refused(f"{path} fails because a test wants that")
        if unknown:
            raise Refused(f"unknown {sorted(unknown)}")
        return body

    async def _control(self, path: str, handler: Any, request: web.Request) -> web.Response:
        async def answer() -> web.Response:
            try:
                said = await handler(await self._body(path, request))
            except Refused as error:
                return web.json_response({"success": False, "message": str(error)}, status=400)
            if said is None:
                return web.Response()
            return web.json_response({"success": True, "message": "", "status": "ok", **said})

        return await self._to_its_end(answer())

    async def _to_its_end(self, answer: Coroutine[Any, Any, T]) -> T:
        """Such a call is not cancelled when its caller disconnects."""
        task = asyncio.ensure_future(answer)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await asyncio.shield(task)

    # --- control -------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        # The real server reports it after 20 s.
        return web.Response(status=503 if self.health_samples and self.is_pause else 200)

    async def _info(self, request: web.Request) -> web.Response:
        states = [await self.scheduler.ask(self.scheduler.state)]
        return web.json_response({**self.info, "internal_states": states})

    async def _describe(self, request: web.Request) -> web.Response:
        return web.json_response({"paths": self.routes})

    async def _flush(self, request: web.Request) -> web.Response:
        self.calls.append(("/flush_cache", dict(request.query)))
        if "/flush_cache" in self.refuse:
            self.refuse.remove("/flush_cache")
            return web.Response(status=400)
        done = await self.scheduler.flush_within(float(request.query.get("timeout", 0)))
        return web.Response(status=200 if done else 400)

    async def _pause_generation(self, body: Any) -> dict[str, Any]:
        mode = body.get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise Refused(f"mode {mode!r}")
        async with self._pause:
            self.is_pause = True
            if mode != "abort":
                self.scheduler.tell(partial(self.scheduler.pause, mode))
                return {}
            while True:
                self.abort("", everything=True)
                if not self.readers:
                    return {}
                await asyncio.sleep(AGAIN_S)

    async def _continue_generation(self, body: Any) -> dict[str, Any]:
        async with self._pause:
            self.is_pause = False
            self.scheduler.tell(self.scheduler.go_on)
            self._pause.notify_all()
        return {}

    async def _abort_request(self, body: Any) -> None:
        self.abort(body.get("rid") or "", bool(body.get("abort_all")))

    def abort(self, rid: str, everything: bool = False) -> None:
        if not everything:
            state = self.states.get(rid)
            if state is None or state.abort_sent:
                return
            state.abort_sent = True
        self.scheduler.tell(partial(self.scheduler.abort, rid, everything))

    # --- weights -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def undisturbed(self) -> AsyncIterator[None]:
        """Paused, or with the writer's lock: nothing runs, and nothing that comes begins."""
        async with self._pause:
            if self.is_pause:
                yield
                return
        async with self._changed:
            self._writers += 1
            await self._changed.wait_for(lambda: not self.readers)
        try:
            yield
        finally:
            async with self._changed:
                self._writers -= 1
                self._changed.notify_all()

    # --- requests ------------------------------------------------------------------------------

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await self._body("/generate", request)
        except Refused as error:
            return web.json_response({"error": str(error)}, status=400)
        if not body.get("stream"):
            return await self._to_its_end(self._whole(body))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        try:
            async with contextlib.aclosing(self._answers(body)) as answers:
                async for out in answers:
                    await response.write(b"data: " + json.dumps(out).encode() + b"\n\n")
        except RequestError as error:
            said = {"message": str(error), "type": "invalid_request_error", "code": 400}
            await response.write(b"data: " + json.dumps({"error": said}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _whole(self, body: Any) -> web.Response:
        try:
            answers = [out async for out in self._answers(body)]
        except RequestError as error:
            return web.json_response({"error": {"message": str(error)}}, status=400)
        return web.json_response(answers[-1])

    async def _answers(self, body: Any) -> AsyncIterator[dict[str, Any]]:
        if body["rid"] in self.states:
            raise RequestError(f"a request {body['rid']} is here already")
        state = self.states[body["rid"]] = State(body["rid"])
        try:
            async with self._pause:
                await self._pause.wait_for(lambda: not self.is_pause)
            async with self._changed:
                await self._changed.wait_for(lambda: not self._writers)
                self.readers += 1
            try:
                async for out in self._follow(body, state):
                    yield out
            finally:
                await self._to_its_end(self._read())
        except BaseException:
            if self.states.get(state.rid) is state:
                if state.dispatched:
                    self.abort(state.rid)
                else:
                    del self.states[state.rid]
            raise

    async def _read(self) -> None:
        async with self._changed:
            self.readers -= 1
            self._changed.notify_all()

    async def _follow(self, body: Any, state: State) -> AsyncIterator[dict[str, Any]]:
        given = body["sampling_params"]
        if len(body["input_ids"]) + given["max_new_tokens"] > self.context:
            raise RequestError(f"more than {self.context} tokens")
        if len(body["input_ids"]) >= self.longest:
            raise RequestError(f"not less than {self.longest} tokens to read")
        self.scheduler.tell(partial(self.scheduler.add, self._req(body)))
        state.dispatched = True
        while not state.finished or state.outputs:
            await state.event.wait()
            outputs, state.outputs = state.outputs, []
            state.event.clear()
            yield outputs[-1]

    def _req(self, body: Any) -> Req:
        given = body["sampling_params"]
        top_k = given.get("top_k", -1)
        sampling = Sampling(
            given["max_new_tokens"],
            temperature=given["temperature"],
            top_p=given.get("top_p", 1.0),
            top_k=0 if top_k == -1 else top_k,
            min_p=given.get("min_p", 0.0),
        )
        stops = set() if given.get("ignore_eos") else {self.scheduler.eos, *given["stop_token_ids"]}
        decoded = sequence_of(self.scheduler.decoder, body)
        (asked,) = body.get("token_ids_logprob") or (None,)
        return Req(body["rid"], decoded, sampling, stops, body.get("logprob_start_len") == 0, asked)

    def _written(self, entry: tuple[float | None, int, None]) -> tuple[float | None, int, None]:
        last = int(self.scheduler.decoder.config["vocab_size"]) - 1
        return entry[0], entry[1] if entry[1] < last else 0, entry[2]

    def _take(self, output: Output) -> None:
        """What the scheduler sends, in the order in which it is sent; a version is that of now."""
        state = self.states.get(output.rid)
        if state is None:
            return
        meta = {
            "id": output.rid,
            "finish_reason": output.finish,
            "weight_version": self.version,
            "completion_tokens": len(output.entries),
            "input_token_logprobs": [self._written(entry) for entry in output.inputs],
            "input_token_ids_logprobs": output.of_asked,
            "output_token_logprobs": output.entries,
            "output_token_logprobs_length": len(output.entries),
        }
        if not self.repeats and (output.finish is None or output.finish["type"] != "abort"):
            meta["output_token_logprobs"] = output.entries[-1:]
        if output.spans is not None:
            meta["weight_versions"] = output.spans
            meta["weight_version"] = output.spans[-1]["version"]
        state.outputs.append(
            {"output_ids": [token for _, token, _ in output.entries], "meta_info": meta}
        )
        if output.finish is not None:
            state.finished = True
            del self.states[output.rid]
        state.event.set()


if __name__ == "__main__":  # as the process of a server: --model-path FOLDER --port NUMBER …
    after = dict(zip(sys.argv[1:], sys.argv[2:], strict=False))
    SGLangStandIn(Path(after["--model-path"]), int(after["--port"]), tuple(sys.argv)).start()
    sys.stderr.write("the stand-in is ready\n")
    threading.Event().wait()
