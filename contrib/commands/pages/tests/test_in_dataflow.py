"""The pages in the dataflow of a run: behind its token, or a login that its token has signed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from served_runs import behind, serving, write_run

from astraflow_contrib_pages import command, in_dataflow
from astraflow_contrib_pages.runs_folder import RunFolder
from astraflow_core.types import RunInfo
from astraflow_runtime.audit_log import FILE
from astraflow_runtime.cli import main
from astraflow_wire.http.browser_sessions import LOGIN
from astraflow_wire.http.server import create_app

TOKEN = "a-token-of-this-run"


def info(directory: Path) -> RunInfo:
    """What a process knows of its run."""
    return RunInfo(directory.name, 0, 10, 2, ("solver",), directory)


def test_only_the_dataflow_of_a_run_has_them(tmp_path: Path) -> None:
    in_dataflow.remember(info(tmp_path / "one"))
    assert in_dataflow.routers("raas") == [] and len(in_dataflow.routers("dataflow")) == 1


def test_a_login_opens_the_pages_of_this_run_and_nothing_else(tmp_path: Path) -> None:
    write_run(tmp_path, "one")
    write_run(tmp_path, "two")
    in_dataflow.remember(info(tmp_path / "one"))
    app = create_app("dataflow", TOKEN, 1 << 20)
    service = APIRouter()
    service.add_api_route("/v1/stop", lambda: "stopped", methods=["GET", "POST"])
    for router in (service, *in_dataflow.routers("dataflow")):
        app.include_router(router)
    with behind(app, app.state.browser_sessions) as pages:
        for path in ("/ui/", "/ui/static/main.js", "/ui/api/runs", "/v1/stop", f"{LOGIN}?key=x"):
            assert pages.ask(path, scope=None).status == 401, path
        assert [row["name"] for row in pages.ask("/ui/api/runs").json["runs"]] == ["one"]
        assert pages.ask("/ui/api/runs/two").status == 404
        for path in ("/v1/stop", "/ui/../v1/stop", "/ui/%2e%2e/v1/stop", "//v1/stop"):
            for method in ("GET", "POST"):
                assert pages.ask(path, method, origin=pages.origin).status in (401, 404), path
        path = pages.login_url("read").removeprefix(pages.origin)
        first = pages.ask(path, scope=None)
        assert first.status == 303 and pages.ask(path, scope=None).status == 401
        ours: dict[str, Any] = {"x_astraflow_action": "1", "origin": pages.origin}
        stop = "/ui/api/runs/one/actions/stop"
        assert pages.ask(stop, "POST", b"{}", scope="read", **ours).status == 403
        assert pages.ask(stop, "POST", b"{}", scope="full", x_astraflow_action="1").status == 403
        assert pages.ask(stop, "POST", b"{}", scope="full", **ours).status == 503
        bearer = f"Bearer {TOKEN}"
        assert (
            pages.ask("/ui/api/session", scope=None, authorization=bearer).json["scope"] == "full"
        )


def test_a_link_needs_a_running_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path, "one")
    assert main(["ui", "--of", str(folder)]) == 2
    assert "is not running" in capsys.readouterr().err


def test_a_link_needs_a_dataflow_with_pages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path, "one", state="crashed")
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    in_dataflow.remember(info(folder))
    for routers in ([], in_dataflow.routers("dataflow")):
        app = create_app("dataflow", TOKEN, 1 << 20)
        for router in routers:
            app.include_router(router)
        with behind(app, app.state.browser_sessions) as pages:
            (folder / "dataflow.json").write_text(json.dumps({"url": pages.origin}))
            code = main(["ui", "--of", str(folder)])
        said = capsys.readouterr()
        assert (code, "serves no pages" in said.err) == ((0, False) if routers else (2, True))
        assert ("/ui/login?key=full." in said.out) is bool(routers)
    monkeypatch.setattr(command, "_ASK_S", 0.1)
    assert main(["ui", "--of", str(folder)]) == 2
    assert "no dataflow answers" in capsys.readouterr().err


def test_raas_are_added_only_where_a_launcher_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path, "one", state="crashed")
    monkeypatch.setattr(RunFolder, "_serving", lambda self: True)
    with serving(tmp_path) as pages:
        assert pages.ask("/ui/api/runs/one/pool").json["launched"] is False
        ours: dict[str, Any] = {"x_astraflow_action": "1", "content_type": "application/json"}
        path = "/ui/api/runs/one/actions/add"
        answer = pages.ask(path, "POST", b'{"count": "2"}', origin=pages.origin, **ours)
    assert answer.status == 409 and "no launcher" in answer.json["error"]
    assert not (folder / FILE).exists()
