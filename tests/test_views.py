"""docs/processes.md documents the reply of every GET of the services; real services are compared with it."""

from __future__ import annotations

import ast
import json

import msgspec
from fastapi.testclient import TestClient
from pages import processes as page
from pages import views
from served_dataflow import Served
from workspace import ROOT, nodes_of

from astraflow_runtime.dataflow.fleet.balance import StepBalance
from astraflow_wire.status import read_status, read_waits

RUNTIME = ROOT / "runtime" / "src" / "astraflow_runtime"


def lively() -> Served:
    """A dataflow of which every part of its status has something to show."""
    served = Served(evals={"held": 2})
    bench = served.bench
    tasks, _ = bench.lease(10)
    for task in tasks:
        bench.push(task)
    bench.next_batch(0)
    bench.lease(2)
    for version in range(2):  # the first step begins the windows of the balance
        bench.state.balance.group_pushed("r0", "solver", 6, True)
        step = StepBalance(0.0, 0, 0, version, again=False, done=False)
        bench.state.balance.step_acknowledged("solver", step, float(version), 1, {})
    return served


def test_views_of_the_dataflow_hold_what_is_described() -> None:
    served = lively()
    shown = {e.path for e in page.endpoints(page.dataflow_app()) if e.method == "GET"}
    assert views.DATAFLOW.keys() == shown - page.NOT_JSON.keys()
    for path, view in views.DATAFLOW.items():
        value = served.client.get(path).json()
        if path in views.GENERATED:
            continue
        unknown, known = views.undescribed(value, view)
        assert not unknown, f"GET {path} holds {unknown}; describe it in scripts/pages/views.py"
        assert known == view.keys(), f"GET {path} lacks {sorted(view.keys() - known)}"
    assert served.client.get("/metrics").text.startswith("# HELP")


def test_status_and_waits_are_the_structs_that_are_described() -> None:
    served = lively()
    status, waits = (served.client.get(path).json() for path in views.GENERATED)
    assert status["raas"] and status["samples"] == [] and waits
    assert json.loads(msgspec.json.encode(read_status(status))) == status
    assert json.loads(msgspec.json.encode(read_waits(waits))) == waits == status["waits"]


def test_views_of_a_raas_hold_what_is_described() -> None:
    (status,) = (
        node
        for node in nodes_of(RUNTIME / "raas" / "service.py")
        if isinstance(node, ast.FunctionDef) and node.name == "status"
    )
    (shown,) = (n.value for n in ast.walk(status) if isinstance(n, ast.Return))
    assert isinstance(shown, ast.Dict)
    assert {ast.literal_eval(key) for key in shown.keys if key} == views.RAAS["/v1/status"].keys()
    health = TestClient(page.raas_app()).get("/v1/health").json()
    assert health.keys() == views.RAAS["/v1/health"].keys()


def test_a_key_that_no_one_describes_is_found() -> None:
    view = {"a.NAME.b": "", "c.N.d": "", "e": ""}
    whole = {"a": {"x": {"b": 1}}, "c": [{"d": 1}], "e": {"anything": 2}}
    assert views.undescribed(whole, view) == ([], set(view))
    new = {"a": {"x": {"b": 1, "z": 1}}, "c": [{"d": 1, "z": 2}], "f": 1}
    assert sorted(views.undescribed(new, view)[0]) == ["a.NAME.z", "c.N.z", "f"]
