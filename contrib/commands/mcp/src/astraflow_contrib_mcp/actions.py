"""Tools that change a running run, each with a reason that is kept in the audit log of the run."""

from __future__ import annotations

import threading
import unicodedata
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, Field

from astraflow_contrib_mcp.runs import Runs
from astraflow_core.errors import AstraFlowError, UserError
from astraflow_runtime.audit_log import AuditLine, write_audit
from astraflow_runtime.cli.run_directory import read_config
from astraflow_runtime.cli.running.asking import asking
from astraflow_runtime.cli.running.data_policy import swap_data_policy
from astraflow_runtime.cli.running.pool import add_raas, drain_raas, user

ACT_S = 30.0
ADD, DRAIN, STOP = "/v1/raas/add", "/v1/raas/drain", "/v1/stop"
SWAP = "/v1/data_policies/swap"
"""What the dataflow is asked."""
MOST_ADDED = 16
"""RaaS of a run that were requested and are not there yet."""
_LEAST_REASON = 10


def _readable(reason: str) -> str:
    """``ValueError`` unless people can read it in a terminal."""
    kinds = [unicodedata.category(letter) for letter in reason]
    if any(kind.startswith("C") or kind in ("Zl", "Zp") for kind in kinds):
        raise ValueError("a reason has no control characters and is one line")
    if sum(kind[0] not in "ZM" for kind in kinds) < _LEAST_REASON:
        raise ValueError(f"a reason has at least {_LEAST_REASON} visible characters")
    return reason


Reason = Annotated[
    str,
    AfterValidator(_readable),
    Field(
        min_length=_LEAST_REASON,
        max_length=500,
        description="why, from what was observed; kept with the run for people to read",
    ),
]
ActingRun = Annotated[
    str, Field(min_length=1, max_length=255, description="name of the run, as list_runs gives it")
]
Place = Annotated[
    str,
    Field(
        min_length=1, max_length=255, description="'prompts', or the name of a policy of [policies]"
    ),
]
PolicyName = Annotated[
    str,
    Field(min_length=1, max_length=255, description="the data policy's name, or its component"),
]


class Actions:
    """The tools, as methods."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._adding = threading.Lock()

    def add_raas(
        self,
        run: ActingRun,
        reason: Reason,
        count: Annotated[int, Field(ge=1, le=MOST_ADDED, description="number of RaaS")] = 1,
    ) -> dict[str, Any]:
        """Request more RaaS from the launcher of a running run. They take a while to start: verify with status, whose
        pool.size counts those that are there. At most 16 that were requested may be missing at a time."""

        def add(folder: Path, id: str) -> Any:
            with self._adding:  # each holds it for two deadlines at most
                with asking(str(folder)) as client:
                    status = client.get_json("/v1/status", deadline_s=ACT_S)
                check_missing(status, read_config(folder), count)
                return add_raas(folder, count, _author(), None, id)

        return self._act(run, "add", ADD, {"count": count}, reason, add)

    def drain_raas(
        self,
        run: ActingRun,
        reason: Reason,
        raas: Annotated[
            str, Field(min_length=1, max_length=255, description="its name, as status lists it")
        ],
    ) -> dict[str, Any]:
        """Let a RaaS finish its tasks and leave. The last one is never drained."""

        def drain(folder: Path, id: str) -> Any:
            with asking(str(folder)) as client:
                return drain_raas(client, raas, _author(), id)

        return self._act(run, "drain", DRAIN, {"raas": raas}, reason, drain)

    def swap_data_policy(
        self,
        run: ActingRun,
        reason: Reason,
        place: Place,
        name: PolicyName,
        table: Annotated[
            dict[str, Any],
            Field(
                min_length=1,
                max_length=50,
                description='as in the config: {"use": "replay", "ratio": 0.25}',
            ),
        ],
    ) -> dict[str, Any]:
        """Replace a data policy of a running run, or change its keys. A data policy decides which prompts and groups a run
        uses; resource config of the run shows those that it began with."""
        return self._swap("swap", run, place, name, table, reason)

    def rollback_data_policy(
        self, run: ActingRun, reason: Reason, place: Place, name: PolicyName
    ) -> dict[str, Any]:
        """Undo the last swap of a data policy."""
        return self._swap("rollback", run, place, name, {}, reason)

    def stop_run(
        self,
        run: ActingRun,
        reason: Reason,
    ) -> dict[str, Any]:
        """Stop a run cleanly. Its processes end; only a person can continue it, with `astraflow run --resume`."""
        from astraflow_wire.messages import Done, StopRun

        def stop(folder: Path, id: str) -> Any:
            with asking(str(folder)) as client:
                message = StopRun(reason=f"{_author()}: {reason}", id=id)
                return client.post(STOP, message, Done, deadline_s=ACT_S)

        return self._act(run, "stop", STOP, {}, reason, stop)

    def _swap(
        self, action: str, run: str, place: str, name: str, table: dict[str, Any], reason: str
    ) -> dict[str, Any]:
        def swap(folder: Path, id: str) -> Any:
            with asking(str(folder)) as client:
                try:
                    return swap_data_policy(client, place, name, _author(), table, id)
                except ValueError as error:  # of the message, before it is sent
                    raise UserError(f"the table cannot be sent: {error}") from error

        asked = {"place": place, "name": name, "table": table}
        return self._act(run, action, SWAP, asked, reason, swap)

    def _act(
        self,
        run: str,
        action: str,
        request: str,
        asked: dict[str, Any],
        reason: str,
        do: Callable[[Path, str], Any],
    ) -> dict[str, Any]:
        """Do it, with a line in the audit log before and after."""
        folder = self._runs.find(run)
        self._runs.check_token(folder)
        id = uuid.uuid4().hex

        def write(outcome: str) -> None:
            line = AuditLine(
                by="mcp", id=id, who=user(), request=request, asked=asked, reason=reason, outcome=outcome
            )  # fmt: skip
            write_audit(folder, line)

        write("asked")
        try:
            answer = do(folder, id)
        except AstraFlowError as error:
            write(f"failed: {error}")
            raise
        write("done")
        return {"done": action, "run": folder.name, **msgspec.to_builtins(answer)}


def check_missing(status: Mapping[str, Any], config: Mapping[str, Any], count: int) -> None:
    """:class:`UserError` if more than :data:`MOST_ADDED` RaaS of those that were requested would be missing."""
    pool = status["pool"]
    wanted = config.get("raas", {}).get("replicas", 1) + pool["added"] - pool["drained"]
    missing = max(0, min(pool["added"], wanted - pool["size"]))
    if missing + count > MOST_ADDED:
        raise UserError(
            f"{missing} RaaS that were requested have not registered yet; with {count} more there would be over {MOST_ADDED}: wait "
            "until status shows them"
        )


def _author() -> str:
    return f"{user()} (mcp)"
