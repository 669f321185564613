"""The contract of a RaaS as a dataflow of the public protocol calls it: eight endpoints, and five for evaluation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response

from astraflow_contrib_compat.door import PathKeyGuard
from astraflow_contrib_compat.ours.results import sampling_of
from astraflow_contrib_compat.ours.tasks import Lane, OwnTasks, check_data
from astraflow_contrib_compat.ours.versions import OwnVersions
from astraflow_contrib_compat.pickles.decoder import PickleDecoder
from astraflow_contrib_compat.pickles.encoder import encode_pickle
from astraflow_core.errors import AstraFlowError
from astraflow_wire.http.server import create_app
from astraflow_wire.messages import SamplingMessage, Task, decode, encode

log = logging.getLogger("astraflow.compat")
LONGEST_PULL_S = 5.0
MOST_ITEMS, MOST_WORKFLOWS = 1 << 16, 1024


class RaasContract:
    """Answers the calls. ``workflow``: the one name that ``/register_workflow`` may name, since our RaaS run the workflow of
    their run; ``samples_key``: of gconfig_overrides with the episodes of a submission; ``sampling``, ``deadline_s``,
    ``group_size``: of tasks that do not say. ``stopping`` is set when the dataflow shuts it down."""

    def __init__(
        self,
        tasks: OwnTasks,
        versions: OwnVersions,
        workflow: str,
        samples_key: str,
        sampling: SamplingMessage,
        group_size: int,
        deadline_s: float,
    ) -> None:
        self._tasks, self._versions, self._workflow = tasks, versions, workflow
        self._samples_key, self._sampling = samples_key, sampling
        self._group_size, self._deadline_s = group_size, deadline_s
        self._workflows: dict[str, tuple[SamplingMessage, int]] = {}
        self.stopping = asyncio.Event()

    def status(self) -> dict[str, Any]:
        """``GET /status``."""
        ready = self._tasks.ready and not self.stopping.is_set()
        return {
            "status": "ready" if ready else "starting",
            "message": f"{len(self._tasks.raas)} RaaS of AstraFlow",
            "models": list(self._versions.policies),
            "queued": len(self._tasks.outstanding()),
            "workflows": list(self._workflows),
        }

    def availability(self) -> dict[str, Any]:
        """``GET /availability``."""
        outstanding = self._tasks.outstanding()
        held = sum(each.task.group_size for each in outstanding)
        free = max(0, self._tasks.capacity - held) // self._group_size if self._tasks.ready else 0
        most = self._tasks.capacity // self._group_size
        return {"available": free, "inflight": len(outstanding), "max_concurrency": most}

    def handlers(self) -> dict[str, Callable[[dict[str, Any]], Awaitable[Any]]]:
        """Path → what answers it."""
        return {
            "/register_workflow": self._register_workflow,
            "/submit": lambda asked: self._submit("", asked),
            "/pull": lambda asked: self._pull("", asked),
            "/notify_version": self._notify_version,
            "/shutdown": self._shutdown,
            "/reset_training_engine": self._reset,
            "/eval_start": self._eval_boundary,
            "/eval_end": self._eval_boundary,
            "/eval_submit": lambda asked: self._submit("eval_", asked),
            "/eval_pull": self._eval_pull,
        }

    async def _register_workflow(self, asked: dict[str, Any]) -> Any:
        name, workflow = _text(asked, "workflow_id"), _text(asked, "workflow_cls")
        if workflow != self._workflow:
            raise ValueError(
                f"workflow_cls {workflow!r}: this RaaS runs the workflow {self._workflow!r}"
            )
        overrides = dict(asked.get("gconfig_overrides") or {})
        episodes = int(overrides.pop(self._samples_key, self._group_size))
        if episodes < 1:
            raise ValueError(f"{self._samples_key} is {episodes}")
        if name not in self._workflows and len(self._workflows) >= MOST_WORKFLOWS:
            raise ValueError(f"{MOST_WORKFLOWS} workflows are registered; the limit")
        self._workflows[name] = sampling_of(overrides, self._sampling), episodes
        return {"workflow_id": name, "registered": True, "total_workflows": len(self._workflows)}

    async def _submit(self, lane: Lane, asked: dict[str, Any]) -> Any:
        name = asked.get("workflow_id", "default")
        if name not in self._workflows:
            raise ValueError(f"workflow_id {name!r} is not registered")
        sampling, episodes = self._workflows[name]
        data = check_data(asked.get("data"))

        def make(task: str) -> Task:
            prompt = next(
                (data[key] for key in ("prompt_id", "query_id", "id") if key in data), task
            )
            made = Task(
                id=task, prompt_id=str(prompt), data=data, group_size=episodes, sampling=sampling,
                lease_s=self._tasks.lease_s, deadline_s=self._deadline_s,
            )  # fmt: skip

            return decode(encode(made), Task)  # what our RaaS could not read is refused here

        return {"task_id": await self._tasks.submit(lane, make)}

    async def _pull(self, lane: Lane, asked: dict[str, Any]) -> list[dict[str, Any]]:
        most = min(int(asked.get("max_items", 256)), MOST_ITEMS)
        wait_s = min(float(asked.get("timeout", 0.0)), LONGEST_PULL_S)
        return await self._tasks.pull(lane, most, wait_s)

    async def _eval_pull(self, asked: dict[str, Any]) -> Any:
        items = await self._pull("eval_", asked)
        return {
            "items": items,
            "inflight": len(self._tasks.outstanding("eval_")),
            "pending": self._tasks.pending("eval_"),
            "total_submitted": self._tasks.submitted("eval_"),
        }

    async def _reset(self, asked: dict[str, Any]) -> Any:
        cancelled, dropped = await self._tasks.reset("")
        return {
            "ready_for_eval": True, "cancelled": cancelled, "stragglers": 0, "dropped_results": dropped,
            "sglang_running": 0, "reset_epoch": self._tasks.epoch,
        }  # fmt: skip

    async def _eval_boundary(self, asked: dict[str, Any]) -> Any:
        await self._tasks.reset("eval_")
        return {}

    async def _notify_version(self, asked: dict[str, Any]) -> Any:
        version = asked.get("version")
        if not isinstance(version, int) or isinstance(version, bool):
            raise ValueError("version must be a whole number")
        return await self._versions.update(
            _text(asked, "model_id"), version, _text(asked, "sender_endpoint")
        )

    async def _shutdown(self, asked: dict[str, Any]) -> Any:
        self.stopping.set()
        return "shutting down"


def contract_app(
    contract: RaasContract, key: str, decoder: PickleDecoder, tensors: bool
) -> FastAPI:
    """The endpoints, for those who have the key; bodies are pickles both ways, in an envelope."""
    app = create_app("RaaS of the public protocol", "", decoder.most_bytes)
    app.add_middleware(PathKeyGuard, key=key)

    async def status() -> dict[str, Any]:
        return contract.status()

    async def availability() -> dict[str, Any]:
        return contract.availability()

    app.add_api_route("/status", status)
    app.add_api_route("/availability", availability)

    def route(handler: Callable[[dict[str, Any]], Awaitable[Any]]) -> Any:
        async def call(request: Request) -> Response:
            try:
                body = await request.body()
                asked = await decoder.decode(body) if body else {}
                if not isinstance(asked, dict):
                    raise ValueError("the body must be a pickled dict")
                told, status_ = {"ok": True, "result": await handler(asked)}, 200
                encoded = await asyncio.to_thread(encode_pickle, told, tensors)
            except (AstraFlowError, ValueError, TypeError, OverflowError) as error:
                log.info("%s was refused: %s", request.url.path, error)
                encoded, status_ = encode_pickle({"ok": False, "error": str(error)}), 500
            return Response(encoded, status_, media_type="application/octet-stream")

        return call

    for path, handler in contract.handlers().items():
        app.add_api_route(path, route(handler), methods=["POST"])
    return app


def _text(asked: dict[str, Any], key: str) -> str:
    found = asked.get(key)
    if not isinstance(found, str) or not found:
        raise ValueError(f"{key} must be a text")
    return found
