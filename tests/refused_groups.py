"""Groups that the dataflow refuses, for the test of what its page says."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np
from served_dataflow import Served, flows

from astraflow_wire.frames import Frame, decode_header, encode_frame
from astraflow_wire.groups import GroupHeader
from astraflow_wire.images.table import ImagePlace, ImageTable


def pushed_by_the_process_before() -> Any:
    served = Served()
    task = served.task()
    body = flows.group_body(task.id, task.prompt_id)
    served.bench.register_raas("r0")
    (again,), _ = served.bench.lease(2)
    assert again.id == task.id
    return served.post("/v1/groups", body)


def pushed_after_a_restart() -> Any:
    """A version was announced since the task was leased."""
    served = Served()
    task = served.task()
    served.bench.announce(1)
    served.bench.state.fleet.restore(served.bench.time[0])
    return served.post("/v1/groups", flows.group_body(task.id, task.prompt_id, version=1))


def pushed(raas: str = "r0", **group: Any) -> Callable[[], Any]:
    def push() -> Any:
        served = Served()
        task = served.task()
        prompt = group.pop("prompt", task.prompt_id)
        return served.post("/v1/groups", flows.group_body(task.id, prompt, raas, **group))

    return push


def contradicted() -> Any:
    served = Served()
    task = served.task()
    frame = Frame(flows.group_body(task.id, task.prompt_id))
    header = decode_header(frame, GroupHeader)
    wrong = [msgspec.structs.replace(s, min_version=7) for s in header.sequences]
    columns = [np.frombuffer(buffer, np.uint8) for buffer in frame.buffers]
    body = encode_frame(msgspec.structs.replace(header, sequences=wrong), columns)
    return served.post("/v1/groups", bytes(body))


def with_an_image(digest: str | None = None) -> Callable[[], Any]:
    """Of a policy that reads none; ``digest``: another than that of its bytes."""

    def push() -> Any:
        served = Served()
        task = served.task()
        frame = Frame(flows.group_body(task.id, task.prompt_id))
        file = b"an image"
        named = digest or sha256(file).hexdigest()
        table = ImageTable([ImagePlace(0, 1, 0)], [named], [len(file)])
        header = msgspec.structs.replace(decode_header(frame, GroupHeader), images=table)
        buffers = [*frame.buffers, file]
        columns = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        return served.post("/v1/groups", bytes(encode_frame(header, columns)))

    return push


def of_an_evaluation() -> Any:
    served = Served(evals={"held": 2})
    task = next(task for task in served.bench.lease()[0] if task.eval_set)
    served.bench.announce(1)
    body = flows.group_body(task.id, task.prompt_id, version=1, rewards=(0.0,), eval_set="held")
    return served.post("/v1/groups", body)


def of_a_task_that_ended() -> Any:
    served = Served()
    served.bench.register_raas("r1")
    task = served.task()
    served.bench.push(task)
    return served.post("/v1/groups", flows.group_body(task.id, task.prompt_id, "r1"))
