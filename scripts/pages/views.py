"""The contents of the JSON of the services. Dotted keys; ``NAME`` stands for a name, ``N`` for a place in a list.

A test compares these with what real services answer.
"""

from __future__ import annotations

from astraflow_runtime.dataflow.progress import RunState
from astraflow_wire.status import PoolStatus, Status, WaitStatus
from pages.fields import View, described

GENERATED = ("/v1/status", "/v1/waits")
"""Views that are described where their fields stand."""

_TASKS = "tasks by state: `admitted`, `accepted`, `rejected`, `failed`, `set_aside`, `running`, `queued`, `lost` (0)"
_ROWS = "rows by state: `accepted`, `trained`, `being_trained`, `buffered`, `stale`, `evicted`, `lost` (0)"

DATAFLOW: dict[str, View] = {
    "/v1/health": {
        "service": "`dataflow`",
        "state": ", ".join(f"`{state.value}`" for state in RunState),
    },
    "/v1/access": {
        "oldest": "`ROLE/NAME` → the first generation whose tokens are valid; of what is not there none was revoked",
    },
    "/v1/waits": described(WaitStatus, "N."),
    "/v1/balance": {
        **described(PoolStatus, "pool."),
        "pool.now_s": "seconds of the run",
        "pool.changed_s": "when a RaaS last registered, could be given tasks, was drained or left",
        "report.number": "reports so far; `report` is null before the first",
        "report.at_s": "when it was made, in seconds of the run",
        "report.began_s": "when the first of its windows began",
        "report.pool.size": "RaaS in the pool then (G)",
        "report.pool.held_back": "share of the places on offer that stood empty",
        "report.pool.branch": "`grow`, `shrink` or `hold`",
        "report.pool.target": "RaaS that there should be: the largest target of a policy",
        "report.pool.cool_down_s": "seconds after a change of the pool before a window may lead to the next",
        "report.policies.NAME.steps": "updates in the window, which is the trainer's own",
        "report.policies.NAME.versions": "versions published in it",
        "report.policies.NAME.window_s": "seconds that the updates took, waiting included",
        "report.policies.NAME.waited_s": "seconds of these that the trainer waited for a batch",
        "report.policies.NAME.waiting_fraction": "the quotient (w)",
        "report.policies.NAME.tokens_produced": "trained tokens of the groups that came in",
        "report.policies.NAME.tokens_accepted": "of those that were accepted",
        "report.policies.NAME.tokens_consumed": "of rows that were trained for the first time (n_c)",
        "report.policies.NAME.stale_rows": "rows dropped as too stale; decides nothing",
        "report.policies.NAME.branch": "what the three-zone rule says for this policy",
        "report.policies.NAME.target": "and the size that it gives",
        "report.raas.N.name": "name of a RaaS",
        "report.raas.N.state": "as in status, by now",
        "report.raas.N.ready": "whether it may be given tasks, by now",
        "report.raas.N.draining": "whether it was requested to leave",
        "report.raas.N.set_aside": "why it gets no new tasks after failing too many, by now; empty if it does",
        "report.raas.N.tokens": "trained tokens of the groups that it brought since the report before",
        "report.raas.N.tokens_accepted": "of those that were accepted",
        "report.raas.N.tokens_per_s": "`tokens` per second",
        "report.raas.N.busy_s": "seconds for which places of it held a task, added up over the places",
        "report.raas.N.idle_s": "seconds for which places that it offered stood empty",
        "report.raas.N.speed": "tokens per second of a busy place; the slowest RaaS are drained first",
        "tasks": _TASKS,
        "eval_tasks": "the same of evaluation tasks",
        "rows.NAME": f"of each policy, {_ROWS}",
        "imbalances": "in words what does not add up; empty if all is accounted for",
    },
    "/v1/status": described(Status),
}  # fmt: skip

_REPLICAS = {
    "replicas": "policy or frozen engine → its replicas: number `replica`, `state` (`starting`, `loading`: it has no version yet, `serving`, `silent`, `asleep`), `version` served, `pid` of its engine host, requests `pending` and `routed` to it so far, `restarts` of its host"
}

RAAS: dict[str, View] = {
    "/v1/health": {
        "status": "`ready`, or `starting` while a policy or a frozen engine serves nothing",
        **_REPLICAS,
    },
    "/v1/status": {
        "raas": "its name",
        "pid": "its process",
        "time": "seconds since 1970",
        "ready": "whether every policy serves a version, and every frozen engine runs",
        "serving": "policy → version served",
        "seen": "policy → newest version known",
        "episodes_running": "episodes at this moment",
        "tasks": "ids of the tasks that it holds",
        "admission": "`episodes` that it takes at once, by the gauges of its engines, of `most`, and the `reason` if those are fewer",
        **_REPLICAS,
        "metrics": "as reported to the dataflow ([RenewLeases](#renewleases))",
        "waits": "what it waits for, each as in waits of the dataflow",
    },
}


def undescribed(value: object, view: View, path: str = "") -> tuple[list[str], set[str]]:
    """The dotted keys of JSON that a view does not describe, and those of the view that it has."""
    if path in view:
        return [], {path}
    if isinstance(value, dict):
        named = f"{path}.NAME".lstrip(".")
        below = [
            (item, named if any(f"{k}.".startswith(f"{named}.") for k in view) else f"{path}.{key}")
            for key, item in value.items()
        ]
    elif isinstance(value, list) and any(
        f"{k}.".startswith(f"{path}.N.".lstrip(".")) for k in view
    ):
        below = [(item, f"{path}.N") for item in value]
    else:
        return [path], set()
    unknown: list[str] = []
    known: set[str] = set()
    for item, where in below:
        more, found = undescribed(item, view, where.lstrip("."))
        unknown += more
        known |= found
    return unknown, known
