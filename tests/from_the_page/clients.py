"""A RaaS and a trainer written from docs/processes.md alone: its tables have the names, order and types of all
messages.

They import nothing of AstraFlow. What they know beside the tables is in the prose of the same page: the format of
frames, the token, and who calls what.
"""

from __future__ import annotations

import json
import re
import struct
import time
from typing import Any

import httpx
import msgpack
import numpy as np

PROMPT, SAMPLED = [1, 2, 3], [4, 5]
"""Token ids of every sequence here: what was given, and what was sampled."""


class Page:
    """What the page says."""

    def __init__(self, text: str) -> None:
        self._sections = dict(
            re.findall(r"^### ([^\n]+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        )

    def columns(self, title: str) -> dict[str, tuple[np.dtype[Any], str]]:
        """Name -> dtype, and what stands where nothing was sampled, in the order of the buffers."""
        rows = re.findall(r"^\| `(\w+)` \| `(\S+)` \|(.*)\|$", self._sections[title], re.MULTILINE)
        assert rows, title
        return {n: (np.dtype(t), rest.rpartition("|")[2].strip()) for n, t, rest in rows}

    def message(self, name: str, **values: Any) -> Any:
        """The message as it is packed: a map of its fields or, if the page says so, an array."""
        section = self._sections[name]
        (block,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
        fields = re.findall(r"^(\w+): (.*)$", block, re.MULTILINE)
        required = {field for field, about in fields if " = " not in about}
        assert required <= values.keys() <= {field for field, _ in fields}, (name, values)
        if "A msgpack array of these fields, in this order" in section:
            return [values[field] for field, _ in fields if field in values]
        tags = re.findall(r"one key more, `(\w+)`, with the value `(\w+)`", section)
        return {**values, **dict(tags)}

    def is_tagged(self, header: dict[str, Any], name: str) -> bool:
        """Whether a header of a frame is that of ``name``."""
        (tag,) = re.findall(r"one key more, `(\w+)`, with the value `(\w+)`", self._sections[name])
        return header[tag[0]] == tag[1]


def encode_frame(header: Any, buffers: list[bytes]) -> bytes:
    """ "AF1\\n", u32 length of the header, u32 number of buffers, u64 length of each, header, buffers."""
    head = msgpack.packb(header)
    start = struct.pack("<4sII", b"AF1\n", len(head), len(buffers))
    start += struct.pack(f"<{len(buffers)}Q", *map(len, buffers)) + head
    return b"".join(part + bytes(-len(part) % 8) for part in (start, *buffers))


def decode_frame(body: bytes) -> tuple[dict[str, Any], list[bytes]]:
    magic, size, count = struct.unpack_from("<4sII", body)
    assert magic == b"AF1\n"
    lengths = struct.unpack_from(f"<{count}Q", body, 12)
    at = 12 + 8 * count + size
    header, buffers = msgpack.unpackb(body[at - size : at]), []
    for length in lengths:
        at += -at % 8
        buffers.append(body[at : at + length])
        at += length
    return header, buffers


class Service:
    """What both do: post, with the run's token as a bearer and the number that register answered."""

    def __init__(self, page: Page, url: str, token: str) -> None:
        self.page, self.incarnation = page, 0
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=30)

    def reply(self, path: str, body: Any) -> tuple[int, bytes]:
        """Status and body of the reply."""
        content = body if isinstance(body, bytes) else msgpack.packb(body)
        answer = self._http.post(path, content=content)
        return answer.status_code, answer.content

    def post(self, path: str, body: Any) -> bytes:
        """The body of the reply; an error with the reason for anything but 200."""
        status, content = self.reply(path, body)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {json.loads(content)['error']}")
        return content

    def call(self, path: str, name: str, **values: Any) -> Any:
        """Send the message ``name``, and unpack the reply."""
        return msgpack.unpackb(self.post(path, self.page.message(name, **values)))


class Raas(Service):
    """Rolls out by drawing nothing: every completion is the same, and its reward the number of the trajectory."""

    def __init__(self, page: Page, url: str, token: str) -> None:
        super().__init__(page, url, token)
        self.serving: dict[str, int] = {}
        self.pushed = 0

    def run(self) -> None:
        """Until the notices say stop."""
        known = self.call(
            "/v1/raas/register", "RegisterRaas",
            raas="page", pid=7, host="h", policies=["solver"], capacity=8,
        )  # fmt: skip
        self.incarnation, notices = known["incarnation"], known["notices"]
        end = time.monotonic() + 30
        while not notices.get("stop"):
            assert time.monotonic() < end
            for each in notices.get("announcements", []):
                self.serving = {each["policy"]: each["version"]}
            who = {"raas": "page", "incarnation": self.incarnation}
            state = {"serving": self.serving, "seen": self.serving}
            free = 8 if self.serving else 0
            leased = self.call(
                "/v1/tasks/lease", "LeaseTasks", free=free, wait_s=0.1, **state, **who
            )
            tasks, notices = leased["tasks"], leased["notices"]
            if tasks:
                names = [task["id"] for task in tasks]
                self.call("/v1/tasks/renew", "RenewLeases", tasks=names, **state, **who)
            for task in tasks:
                status, answer = self.reply("/v1/groups", self.group(task))
                assert status in (200, 409), answer  # 409: the task is no longer wanted
                self.pushed += status == 200
        self.call(
            "/v1/raas/leave", "LeaveRaas", raas="page", incarnation=self.incarnation, reason="stop"
        )

    def group(self, task: dict[str, Any]) -> bytes:
        """The frame of a group."""
        count, version = task["group_size"], self.serving["solver"]
        length = len(PROMPT) + len(SAMPLED)
        sequences = [
            self.page.message(
                "SequenceHeader", policy="solver", length=length, reward=float(number),
                trajectory=number, truncated=False, min_version=version,
            )
            for number in range(count)
        ]  # fmt: skip
        header = self.page.message(
            "GroupHeader", raas="page", incarnation=self.incarnation, task=task["id"],
            prompt_id=task["prompt_id"], sequences=sequences, trajectories=count,
        )  # fmt: skip
        given = {
            "tokens": SAMPLED, "loss_mask": [1, 1], "logprobs": [-0.5, -0.25], "versions": [version] * 2,
        }  # fmt: skip
        buffers = []
        for name, (dtype, unsampled) in self.page.columns("Columns of tokens").items():
            before = PROMPT if name == "tokens" else [int(unsampled)] * len(PROMPT)
            buffers.append(np.array([*before, *given[name]] * count, dtype).tobytes())
        return encode_frame(header, buffers)


class Trainer(Service):
    """Keeps the batches that it gets, and says that it has trained on them."""

    def run(self) -> list[dict[str, Any]]:
        """Until there are no more: the batches, header and columns."""
        known = self.call(
            "/v1/trainers/register", "RegisterTrainer", policy="solver", pid=8, host="h"
        )
        who = {"policy": "solver", "incarnation": known["incarnation"]}
        version, batches = known["highest_version"] + 1, list[dict[str, Any]]()
        self.announce(who, version)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            asked = self.page.message("NextBatch", version=version, wait_s=1.0, **who)
            header, buffers = decode_frame(self.post("/v1/batches/next", asked))
            if self.page.is_tagged(header, "NoBatch"):
                if header["ended"]:
                    return batches
                continue
            assert self.page.is_tagged(header, "BatchHeader")
            batches.append({**header, "columns": self.columns(header, buffers)})
            version += 1
            self.announce(who, version)
            self.call(
                "/v1/batches/ack", "AcknowledgeBatch",
                batch=header["id"], version=version, metrics={"loss": 0.5}, **who,
            )  # fmt: skip
            self.call("/v1/batches/release", "ReleaseBatches", updates=len(batches), **who)
        raise TimeoutError("the run does not end")

    def announce(self, who: dict[str, Any], version: int) -> None:
        self.call(
            "/v1/versions", "AnnouncementMessage",
            version=version, transport="none", endpoints=[], digest=f"{version:032x}", size=1, **who,
        )  # fmt: skip

    def columns(self, header: dict[str, Any], buffers: list[bytes]) -> dict[str, Any]:
        """Name -> array, in the order of the page."""
        titles = [("Columns of rows", "rows"), ("Columns of tokens", "tokens")]
        titles += [("Columns of units", "rows")] if header.get("units") else []
        titles += [("Column of borrowed rows", "rows")] if header.get("source") else []
        titles += [("Columns of turns", "turns")] if header.get("turns") is not None else []
        found: dict[str, Any] = {}
        rest = iter(buffers)
        for title, size in titles:
            # Turns have columns of the same names as rows.
            of_title = found.setdefault("of turns", {}) if size == "turns" else found
            for name, (dtype, _) in self.page.columns(title).items():
                of_title[name] = np.frombuffer(next(rest), dtype)
                assert len(of_title[name]) == header[size], name
        assert next(rest, None) is None
        return found
