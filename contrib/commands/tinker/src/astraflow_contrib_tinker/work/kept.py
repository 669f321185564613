"""Running models on disk, so that they continue after the server was killed: a state now and then, and the requests since.

``running/SESSION/session.json`` is of a session and its samplers, ``running/SESSION/NUMBER/`` of a model: ``model.json``, a folder
``state-NEXT`` with what requests before NEXT have made, and ``requests/``, those from NEXT on as they were sent. A folder is whole when
it has its ``about.json``. The files survive the end of the process, however it ends. A state is on the disk before the previous one
is removed; requests may not be, so a model may not continue after a power failure.
"""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_contrib_tinker.wire.results import GradientResult, Result
from astraflow_contrib_tinker.work.durable import flush, flush_tree
from astraflow_contrib_tinker.work.futures import FailedRequest
from astraflow_contrib_tinker.work.store import ABOUT
from astraflow_wire.host.disk import replace_file

MOST_KEPT_BYTES = 4 << 30
MOST_KEPT = 4096
"""Of the requests of a model since its state; at half of them a step is followed by a state."""
Outcome = Result | FailedRequest


@dataclass(frozen=True, slots=True)
class KeptRequest:
    """A request: ``file`` has it as it was sent, unless it never came; ``failed`` is why it failed, if it did."""

    number: int
    kind: str
    file: Path | None
    failed: FailedRequest | None = None


class KeptModel:
    """The folder of a model. A state is due when ``every`` optimizer steps were made since ``updates``, those of the last one;
    ``next`` is the first request that this one lacks."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every = folder, every
        self.next, self.updates = 1, 0
        self.state: Path | None = None
        self.results: dict[int, tuple[bytes, Outcome]] = {}
        self.about: dict[str, Any] = {}
        self._bytes = self._count = 0

    def create(self, about: Mapping[str, Any]) -> None:
        """A folder for a new model; ``about`` is what it is made from."""
        (self.folder / "requests").mkdir(parents=True, exist_ok=True)
        self.about = dict(about)
        replace_file(self.folder / "model.json", json.dumps(about) + "\n")

    def read(self) -> list[KeptRequest]:
        """Fill this in from the folder; returns the requests since the state, the lowest number first. What was not
        finished is removed."""
        self.about = json.loads((self.folder / "model.json").read_text(encoding="utf-8"))
        for state in self.folder.glob("state-*"):
            number = int(state.name.partition("-")[2])
            if not (state / ABOUT).is_file() or number < self.next:
                shutil.rmtree(state)
                continue
            if self.state is not None:
                shutil.rmtree(self.state)
            self.state, self.next = state, number
        if self.state is not None:
            told = json.loads((self.state / ABOUT).read_text(encoding="utf-8"))
            self.updates = told["updates"]
            self.results = {
                int(number): (bytes.fromhex(digest), _decoded(outcome))
                for number, (digest, outcome) in told["results"].items()
            }
        self._drop_requests()
        found: dict[int, KeptRequest] = {}
        for file in self._requests():
            number, kind = _named(file)
            sent = found.get(number)
            if kind != "failed":
                found[number] = KeptRequest(number, kind, file)
                continue
            outcome = _decoded(json.loads(file.read_text(encoding="utf-8")))
            assert isinstance(outcome, FailedRequest)
            given = (sent.kind, sent.file) if sent else (kind, None)
            found[number] = KeptRequest(number, *given, outcome)
        return [found[number] for number in sorted(found)]

    def has_room(self, size: int) -> bool:
        """Whether a request of that many bytes may be kept."""
        return self._bytes + size <= MOST_KEPT_BYTES and self._count < MOST_KEPT

    def is_due(self, updates: int) -> bool:
        """Whether it is time for a state, when ``updates`` steps have been made in all."""
        return updates - self.updates >= self.every or 2 * self._count >= MOST_KEPT

    def write(self, number: int, kind: str, body: bytes) -> None:
        """Keep a request, once."""
        file = self.folder / "requests" / f"{number:09d}.{kind}"
        if number >= self.next and not file.exists():
            replace_file(file, body)
            self._bytes, self._count = self._bytes + len(body), self._count + 1

    def fail(self, number: int, outcome: FailedRequest) -> None:
        """A request has failed; it will not be tried again."""
        if number >= self.next:
            file = self.folder / "requests" / f"{number:09d}.failed"
            replace_file(file, json.dumps(_encoded(outcome)))

    def begin_state(self, next: int) -> Path:
        """A folder for the state before request ``next``."""
        folder = self.folder / f"state-{next:09d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def finish_state(
        self, folder: Path, updates: int, results: Mapping[int, tuple[bytes, Outcome]]
    ) -> None:
        """The state is whole; ``results`` are of the requests since the one before, which is removed with them."""
        told = {n: (digest.hex(), _encoded(outcome)) for n, (digest, outcome) in results.items()}
        replace_file(folder / ABOUT, json.dumps({"updates": updates, "results": told}))
        flush_tree(folder)
        flush(self.folder)
        before, self.state, self.updates = self.state, folder, updates
        self.next = int(folder.name.partition("-")[2])
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)
        self._drop_requests()

    def _requests(self) -> list[Path]:
        """Their files, those that say why one failed at the end."""
        files = (self.folder / "requests").glob("[0-9]*")
        return sorted(files, key=lambda file: (file.suffix == ".failed", file.name))

    def _drop_requests(self) -> None:
        self._bytes = self._count = 0
        for file in self._requests():
            if _named(file)[0] < self.next:
                file.unlink(missing_ok=True)
            else:
                self._bytes, self._count = self._bytes + file.stat().st_size, self._count + 1


def _named(file: Path) -> tuple[int, str]:
    number, _, kind = file.name.partition(".")
    return int(number), kind


def _encoded(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, FailedRequest):
        return {"failed": [outcome.error, outcome.category]}
    if isinstance(outcome, GradientResult):
        parts = [
            [list(array.shape), base64.b64encode(array.astype("<f4").tobytes()).decode()]
            for array in outcome.logprobs
        ]
        return {"logprobs": parts, "metrics": dict(outcome.metrics)}
    return {"told": outcome}


def _decoded(told: dict[str, Any]) -> Outcome:
    if "failed" in told:
        return FailedRequest(*told["failed"])
    if "logprobs" in told:
        arrays = [
            np.frombuffer(base64.b64decode(data), "<f4").reshape(shape)
            for shape, data in told["logprobs"]
        ]
        return GradientResult(arrays, told["metrics"])
    found: dict[str, object] = told["told"]
    return found
