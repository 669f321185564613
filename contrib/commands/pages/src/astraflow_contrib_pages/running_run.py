"""The views of the dataflow of a running run, and the actions on it."""

from __future__ import annotations

import threading
import time
import tomllib
import uuid
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import msgspec

from astraflow_contrib_pages.runs_folder import RunFolder
from astraflow_core.errors import DeadlineExceeded, Refused, UserError, WireError
from astraflow_runtime.audit_log import AuditLine, read_audit, write_audit
from astraflow_runtime.cli.running.pool import user
from astraflow_runtime.cli.running.secrets import tls_of_run
from astraflow_wire.http.auth import is_token
from astraflow_wire.http.client import SyncClient
from astraflow_wire.limits import MAX_ADDED
from astraflow_wire.messages import (
    AddRaas,
    Done,
    DrainRaas,
    Message,
    PolicySwapped,
    PoolChanged,
    StopRun,
    SwapPolicy,
)
from astraflow_wire.redaction import without_secrets
from astraflow_wire.status import read_status

ASK_S = 3.0
ACT_S = 30.0
FRESH_S = 1.0
"""How long an answer, or that there was none, is given again, however many look at it."""


class RunningRun:
    """The dataflow of the run in a folder. ``token``: the run's, else that in the file ``token`` of its folder."""

    def __init__(self, run: RunFolder, token: str = "") -> None:
        self.run, self._token = run, token
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[float, Any]] = {}

    def ask(self, view: str) -> Any:
        """``GET /v1/VIEW``; ``Refused`` (503) without a reply."""
        with self._lock:
            asked, answer = self._answers.get(view, (-FRESH_S, None))
            if time.monotonic() - asked < FRESH_S:
                if isinstance(answer, Refused):
                    raise answer
                return answer
            with closing(self._client()) as client:
                try:
                    answer = client.get_json(f"/v1/{view}", deadline_s=ASK_S)
                except (DeadlineExceeded, WireError, UserError) as error:
                    # A request that has waited for this answer must not wait as long again.
                    refused = Refused(
                        503, f"the dataflow of {self.run.name} does not answer: {error}"
                    )
                    self._answers[view] = (time.monotonic(), refused)
                    raise refused from error
            self._answers[view] = (time.monotonic(), answer)
            return answer

    def status(self) -> dict[str, Any]:
        """The status of now, or the last one that an ended run has left; empty if it left none. ``live`` says which."""
        if self.run.alive:
            try:
                return {**without_secrets(self.ask("status")), "live": True}
            except Refused as error:
                return {"live": False, "trouble": str(error)}
        left = self.run.read("status.json")
        if left is None:
            return {"live": False}
        try:
            read_status(left)
        except WireError as error:
            return {
                "live": False,
                "trouble": f"{self.run.path / 'status.json'} is damaged: {error}",
            }
        return {**without_secrets(left), "live": False}

    def _client(self) -> SyncClient:
        place = self.run.read("dataflow.json")
        url = place.get("url") if isinstance(place, dict) else None
        if not isinstance(url, str):
            raise Refused(503, f"{self.run.name} does not say where its dataflow is")
        token = self._token
        if not token:
            file = self.run.path / "token"
            try:
                token = file.read_text("utf-8").strip()
            except OSError as error:
                raise Refused(
                    503,
                    f"the token of {self.run.name} cannot be read ({error.strerror}); only its owner can",
                ) from error
            if not is_token(token):
                raise Refused(503, f"{file} is not one line of ASCII without spaces")
        try:
            return SyncClient(url, token, tls=tls_of_run(self.run.path))
        except UserError as error:  # the files of [tls] are gone, or not those of the dataflow
            raise Refused(503, str(error)) from error

    # -- actions ----------------------------------------------------------------------------------

    def act(self, action: str, given: Mapping[str, Any], who: str) -> dict[str, Any]:
        """Carry out an action of a user, with a line in the audit log before and after; ``Refused`` as the dataflow
        says."""
        id = uuid.uuid4().hex
        path, message, expected = _message(action, given, id)

        def write(outcome: str) -> None:
            asked = msgspec.to_builtins(message)
            line = AuditLine(
                by="pages", id=id, who=user(), name=who, request=path, asked=asked, outcome=outcome
            )  # fmt: skip
            write_audit(self.run.path, line)

        if not self._token and not self.run.alive:  # with it, this is the run's own dataflow
            raise Refused(409, f"{self.run.name} has ended: it does not accept {action}")
        if action == "add" and not self.run.launched:
            raise Refused(
                409,
                f"no launcher of {self.run.name} is on this host, and only that starts a RaaS; use astraflow raas add where it "
                "is, or start one with astraflow raas FILE --dataflow URL",
            )
        write("asked")
        try:
            with closing(self._client()) as client:
                client.post(path, message, expected, deadline_s=ACT_S)
        except (Refused, DeadlineExceeded, WireError, UserError) as error:
            write(f"failed: {error}")
            if isinstance(error, Refused):
                raise
            raise Refused(503, f"{action} of {self.run.name}: {error}") from error
        with self._lock:  # an answer under way was given before the action: it is not kept either
            self._answers.clear()
        write("done")
        return {"done": action}

    def audit(self) -> list[AuditLine]:
        """The newest actions of all who changed the run, the last one first."""
        return read_audit(self.run.path)


def _message(action: str, given: Mapping[str, Any], id: str) -> tuple[str, Message, type[Any]]:
    if action == "add":
        return "/v1/raas/add", AddRaas(id=id, count=_count(given), author=user()), PoolChanged
    if action == "drain":
        drain = DrainRaas(raas=_text(given, "raas"), author=user(), id=id)
        return "/v1/raas/drain", drain, PoolChanged
    if action == "stop":
        return "/v1/stop", StopRun(reason=f"{user()} asked for it on the pages", id=id), Done
    if action in ("swap", "rollback"):
        swap = SwapPolicy(
            id=id,
            place=_text(given, "place"),
            name=_text(given, "name"),
            author=user(),
            at=time.time(),
            table=_toml(_text(given, "table")) if action == "swap" else {},
        )
        return "/v1/data_policies/swap", swap, PolicySwapped
    raise Refused(
        404, f"there is no action {action[:100]!r}; there are add, drain, rollback, stop and swap"
    )


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not value:
        raise Refused(400, f"the action needs {key!r}, a text")
    return value


def _count(given: Mapping[str, Any]) -> int:
    text = _text(given, "count")
    if not (text.isascii() and text.isdecimal() and 1 <= int(text[:5]) <= MAX_ADDED):
        raise Refused(400, f"the count is a number from 1 to {MAX_ADDED}, not {text[:50]!r}")
    return int(text[:5])


def _toml(text: str) -> dict[str, Any]:
    try:
        table = tomllib.loads(f"table = {text}")["table"]
    except RecursionError as error:
        raise Refused(400, "the table is nested too deeply") from error
    except tomllib.TOMLDecodeError as error:
        raise Refused(
            400, f'the table is not TOML: {error}; write {{ use = "NAME", key = 1 }}'
        ) from error
    if not isinstance(table, dict) or not table:
        raise Refused(400, 'the table needs use and keys: { use = "NAME", key = 1 }')
    return table
