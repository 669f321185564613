"""The pages over HTTP: their responses, and access to them."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Timer
from typing import Any

import pytest
from served_runs import Pages, behind, serving, step_line, write_run
from stored_groups import store, tokenizer

from astraflow_contrib_pages import trajectories
from astraflow_contrib_pages.routes import static_files
from astraflow_contrib_pages.runs_folder import RunsFolder
from astraflow_contrib_pages.serving import pages_app, pages_server
from astraflow_core.errors import UserError
from astraflow_launching.certificates import self_signed
from astraflow_runtime.audit_log import FILE
from astraflow_runtime.file_lock import lock
from astraflow_runtime.rollouts.segments import FOLDER
from astraflow_wire.http.browser_sessions import LOGIN, BrowserSessions

Serve = Callable[[Path], Pages]
OUR_ACTION: dict[str, Any] = {"x_astraflow_action": "1", "content_type": "application/json"}


def some(root: Path) -> Path:
    write_run(root, "one", 20)
    write_run(root, "two", 40, state="failed", seed=7, batch=64)
    write_run(root, "gone", 3, state="crashed")
    return root


# --- what they answer --------------------------------------------------------------------------


def test_the_table_of_runs(tmp_path: Path, serve: Serve) -> None:
    pages = serve(some(tmp_path))
    table = pages.ask("/ui/api/runs").json
    rows = {row["name"]: row for row in table["runs"]}
    assert {name: row["state"] for name, row in rows.items()} == {
        "one": "finished", "two": "failed", "gone": "crashed",
    }  # fmt: skip
    assert rows["one"]["reward"] == 0.5 and rows["one"]["accuracy"] == 0.25
    assert rows["two"]["error"] == "it broke"
    assert rows["gone"]["steps"] == 3 and rows["gone"]["steps_planned"] == 100
    assert rows["gone"]["reward"] == pytest.approx(step_line(3)["reward"])
    assert rows["two"]["differs"] == {"run.seed": 7, "policies.solver.batch_sequences": 64}
    assert set(table["keys"]) == {"run.seed", "policies.solver.batch_sequences"}


def test_names_and_files_of_no_run_of_ours_hide_no_other_run(tmp_path: Path, serve: Serve) -> None:
    """A name that is not text, a pipe in the place of a file, NaN in the summary, and JSON that nests without end."""
    root = some(tmp_path)
    os.rename(write_run(root, "bytes"), os.fsencode(root) + b"/bytes\xff")
    for name in ("summary.json", "metrics.jsonl"):
        piped = write_run(root, f"piped {name}") / name
        piped.unlink(missing_ok=True)
        os.mkfifo(piped)
    (write_run(root, "nan") / "summary.json").write_text('{"state": "finished", "wall_s": NaN}')
    (write_run(root, "deep") / "metrics.jsonl").write_text("[" * 200_000 + "\n")
    pages = serve(root)
    assert pages.ask("/ui/api/runs/deep").json["damaged"] == 1
    rows = {row["name"]: row for row in pages.ask("/ui/api/runs").json["runs"]}
    assert rows.keys() == {
        "one",
        "two",
        "gone",
        "nan",
        "deep",
        "piped summary.json",
        "piped metrics.jsonl",
    }
    assert rows["nan"]["wall_s"] is None and rows["nan"]["state"] == "finished"
    assert rows["piped summary.json"]["state"] == "crashed"


def test_an_empty_folder_and_one_that_goes(tmp_path: Path, serve: Serve) -> None:
    pages = serve(tmp_path / "runs")
    assert pages.ask("/ui/api/runs").json["runs"] == []
    write_run(tmp_path / "runs", "late")
    assert [row["name"] for row in pages.ask("/ui/api/runs").json["runs"]] == ["late"]


def test_curves_are_thin_and_can_be_zoomed(tmp_path: Path, serve: Serve) -> None:
    write_run(tmp_path, "long", 5000)
    pages = serve(tmp_path)
    drawn = pages.ask("/ui/api/runs/long/curves?figure=reward&buckets=50").json
    x, y = drawn["policies"]["solver"]["reward"]
    assert len(x) <= 102 and (x[0], x[-1]) == (1, 5000) and len(y) == len(x)
    zoomed = pages.ask("/ui/api/runs/long/curves?figure=reward&first=100&last=120").json
    x, y = zoomed["policies"]["solver"]["reward"]
    assert x == list(range(99, 122)) and y[1] == pytest.approx(step_line(100)["reward"])
    for wrong in ("buckets=0", "buckets=x", "buckets=1e999", "first=nan"):
        assert pages.ask(f"/ui/api/runs/long/curves?{wrong}").status == 400, wrong


def test_a_head_is_answered_without_a_body(tmp_path: Path, serve: Serve) -> None:
    pages = serve(some(tmp_path))
    for path in ("/ui/", "/ui/static/main.js"):
        answer = pages.ask(path, "HEAD")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["content-length"] == str(len(pages.ask(path).body))
        assert pages.ask(path, "HEAD", scope=None).status == 401


def test_up_to_eight_runs_are_compared(tmp_path: Path, serve: Serve) -> None:
    pages = serve(some(tmp_path))
    found = pages.ask("/ui/api/compare?run=one&run=two").json
    assert [run["name"] for run in found["runs"]] == ["one", "two"]
    assert {"key": "run.seed", "values": [0, 7]} in found["differs"]
    many = "&".join(f"run=r{n}" for n in range(9))
    for asked, status in (("", 400), (many, 400), ("run=one&run=none", 404)):
        assert pages.ask(f"/ui/api/compare?{asked}").status == status


def test_a_run_that_grows_is_told_as_events(tmp_path: Path, serve: Serve) -> None:
    folder = write_run(tmp_path, "now", 2, state="crashed")
    pages = serve(tmp_path)
    with (folder / "launcher.lock").open("w") as launcher:
        assert lock(launcher.fileno())
        assert pages.ask("/ui/api/runs/now").json["state"] == "running"

        def go_on() -> None:
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(step_line(3)) + "\n")
            launcher.close()

        Timer(0.3, go_on).start()
        answer = pages.ask("/ui/api/runs/now/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    *changes, last = answer.body.decode().strip().split("\n\n")
    told = [json.loads(change.partition("data: ")[2]) for change in changes]
    assert [(each["state"], each["steps"]) for each in told] == [("running", 2), ("crashed", 3)]
    assert "does not say where its dataflow is" in told[0]["status"]["trouble"]
    assert last.startswith("event: end")


def test_what_a_run_has_not_is_said(tmp_path: Path, serve: Serve) -> None:
    pages = serve(some(tmp_path))
    config = {row["key"]: row for row in pages.ask("/ui/api/runs/one/config").json["values"]}
    assert config["run.steps"]["origin"] == "set for this run" and config["run.steps"]["meaning"]
    assert config["run.seed"]["origin"] == "default"
    (tmp_path / "one" / "origins.json").write_text(
        '{"run.steps": "--set", "prompts": "default of prompt_source digits"}'
    )
    config = {row["key"]: row for row in pages.ask("/ui/api/runs/one/config").json["values"]}
    assert config["run.steps"]["origin"] == "--set"
    assert config["prompts.use"]["origin"] == "default of prompt_source digits"
    assert pages.ask("/ui/api/runs/one/plugins").json == {"plugins": []}
    for view in ("weights", "data", "life/group?id=train-1"):
        answer = pages.ask(f"/ui/api/runs/one/{view}")
        assert answer.status == 404 and "journal" in answer.json["error"]
    assert pages.ask("/ui/api/runs/one/pool").json["status"] == {"live": False}


def test_no_answer_has_a_secret_of_the_configuration(tmp_path: Path, serve: Serve) -> None:
    pages = serve(some(tmp_path))
    for name in ("one", "two"):
        with (tmp_path / name / "config.toml").open("a") as file:
            file.write(f'[reward]\nurl = "http://u:S3CR{name}@h/?api_key=S3CR"\n')
            file.write(f'[reward.headers]\nx-team = "S3CR{name}"\n')
    (tmp_path / "one" / "summary.json").write_text(
        '{"state": "failed", "error": "no http://u:S3CR@h", "trackers": {"a": {"place": "http://u:S3CR@h"}}}'
    )
    action = {"action": "swap", "given": {"table": '{ use = "x", api_key = "S3CR" }'}}
    (tmp_path / "one" / FILE).write_text(json.dumps(action) + "\n")
    for path in ("runs", "runs/one", "runs/one/config", "runs/one/pool", "compare?run=one&run=two"):
        answer = pages.ask(f"/ui/api/{path}")
        assert answer.status == 200 and b"S3CR" not in answer.body, path
    config = {
        row["key"]: row["value"] for row in pages.ask("/ui/api/runs/one/config").json["values"]
    }
    assert config["reward.url"] == "http://***@h/?api_key=***"
    assert config["reward.headers.x-team"] == "***" and config["prompts.use"] == "digits"


def test_what_would_reorder_a_text_is_shown_as_its_number(tmp_path: Path, serve: Serve) -> None:
    """Unicode Technical Report 36, 2.9: text may be shown otherwise than a reward or a program reads it."""
    store(write_run(tmp_path, "one"), "\u202eDOOG\u202c \x1b[2K שלום")
    pages = serve(tmp_path)
    path = "/ui/api/runs/one/trajectories"
    group = pages.ask(f"{path}/train-1").json
    said = r"\u202eDOOG\u202c \u001b[2K שלום"
    assert group["trajectories"][0]["turns_said"][1]["text"] == f"{said} 0"
    assert group["prompt_data"]["text"] == said
    assert pages.ask(path).json["entries"][0]["reason"].endswith(said)


def test_a_search_for_text_answers_in_bounded_time_and_goes_on(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(tmp_path, "one")
    store(folder)
    (data,) = (folder / FOLDER).glob("dataflow-*.gz")
    content = bytearray(data.read_bytes())
    content[60] ^= 0xFF  # in the record of the first group, of four trajectories
    data.write_bytes(content)
    pages = serve(tmp_path)
    monkeypatch.setattr(trajectories, "SEARCH_S", 0.0)
    path = "/ui/api/runs/one/trajectories?filter=text~%22IT%20IS%22"
    answers = [pages.ask(path).json for _ in range(4)]
    assert [each["unread"] for each in answers] == [8, 6, 4, 0]
    assert [len(each["entries"]) for each in answers] == [1, 3, 5, 5]
    assert [each["damaged"] for each in answers] == [0, 0, 0, 4]
    assert pages.ask(path).json == answers[-1]


def test_what_was_rolled_out(tmp_path: Path, serve: Serve) -> None:
    folder = write_run(tmp_path, "one", model=tokenizer(tmp_path / "model"))
    pages = serve(tmp_path)
    path = "/ui/api/runs/one/trajectories"
    assert "no rollouts" in pages.ask(path).json["said"]
    store(folder)
    found = pages.ask(path).json
    assert found["stored"] == 9 and not found["more"] and found["entries"][0]["outcome"] == "failed"
    steps = pages.ask(f"{path}?filter=step%3E%3D10%20reward%3E0").json["entries"]
    assert [(each["group"], each["index"], each["step"]) for each in steps] == [
        ("train-1", 0, 12),
        ("train-1", 2, 12),
    ]
    assert pages.ask(f"{path}?filter=nonsense").status == 400
    group = pages.ask(f"{path}/train-1?index=2").json
    assert [each["reward"] for each in group["trajectories"]] == [1, 0, 1, 0]
    assert group["trajectories"][2]["turns_said"][1]["text"] == "it is 2"
    (tokens,) = group["tokens"]
    assert tokens["texts"] == ["what", "is", "it", "\n", "four", "five", "six", "\n"]
    assert tokens["mask"] == [0, 0, 0, 1, 1, 1, 1, 1] and tokens["versions"] == [
        -1,
        -1,
        -1,
        3,
        3,
        4,
        4,
        4,
    ]
    assert tokens["logprobs"][5] == pytest.approx(-5 / 7, abs=1e-5)
    assert tokens["trainer"][5] == pytest.approx(-5 / 7 - 0.05, abs=1e-5)
    assert tokens["advantages"] == [0, 0, 0, *[0.5] * 5]
    for wrong in ("train-99", "..%2Fconfig.toml"):
        assert pages.ask(f"{path}/{wrong}").status == 404


# --- whom they let in --------------------------------------------------------------------------

PATHS = [
    "/ui/", "/ui/static/main.js", "/ui/static/vendor/uPlot.js", "/ui/api/session", "/ui/api/runs", "/ui/api/compare?run=one",
    "/ui/api/runs/one", "/ui/api/runs/one/events", "/ui/api/runs/one/pool", "/ui/api/none", "/none", "/v1/status",
]  # fmt: skip


def test_pages_need_a_login(tmp_path: Path, serve: Serve) -> None:
    pages = serve(some(tmp_path))
    own = pages.sessions
    stranger = BrowserSessions("another secret")
    late = BrowserSessions("a secret of this test", lambda: time.time() - 13 * 3600)
    cookies = [
        "", f"{own.cookie}=", f"{own.cookie}=full", f"{own.cookie}={own.login_key('full')}",
        f"{own.cookie}={stranger.redeem(stranger.login_key('full'))}",
        f"{own.cookie}={late.redeem(late.login_key('full'))}",
        f"{own.cookie}={str(own.redeem(own.login_key('read'))).replace('read', 'full')}",
        f"{own.cookie}={'x' * 5000}", f"{own.cookie}=\xff\xfe",
    ]  # fmt: skip
    for cookie in cookies:
        for path in PATHS:
            assert pages.ask(path, scope=None, cookie=cookie).status == 401, (path, cookie)
    path = "/ui/api/runs/one/actions/stop"
    assert pages.ask(path, "POST", b"{}", scope=None, **OUR_ACTION).status == 401
    assert pages.ask("/ui/api/runs").status == 200


def test_a_link_works_once_and_for_five_minutes(tmp_path: Path, serve: Serve) -> None:
    pages = serve(tmp_path)
    path = pages.login_url("read").removeprefix(pages.origin)
    first = pages.ask(path, scope=None)
    assert first.status == 303 and first.headers["location"] == "/ui/"
    assert (
        "HttpOnly" in first.headers["set-cookie"]
        and "SameSite=strict" in first.headers["set-cookie"]
    )
    cookie = first.headers["set-cookie"].partition(";")[0]
    assert pages.ask("/ui/api/session", scope=None, cookie=cookie).json["scope"] == "read"
    assert pages.ask(path, scope=None).status == 401
    past = BrowserSessions("a secret of this test", lambda: time.time() - 301)
    for key in (past.login_key("full"), "", "a.b.c.d", "x" * 500):
        assert pages.ask(f"{LOGIN}?key={key}", scope=None).status == 401
    assert pages.ask(f"{LOGIN}?key=a&key=b", scope=None).status == 401


def test_only_our_names_and_our_own_pages(tmp_path: Path, serve: Serve) -> None:
    pages = serve(some(tmp_path))
    for host, status in (
        ("attacker.example", 403), (f"attacker.example:{pages.port}", 403), ("", 403), ("pages.example", 200),
        (f"localhost:{pages.port}", 200), ("[::1]:80", 200),
    ):  # fmt: skip
        assert pages.ask("/ui/api/runs", host=host).status == status, host
    foreign: tuple[dict[str, Any], ...] = (
        {"origin": "http://attacker.example"}, {"origin": "null"}, {"origin": f"https://127.0.0.1:{pages.port}"},
        {"origin": "http://127.0.0.1:1"}, {"sec_fetch_site": "cross-site"}, {"sec_fetch_site": "same-site"},
    )  # fmt: skip
    for headers in foreign:
        assert pages.ask("/ui/api/runs", **headers).status == 403, headers
        answer = pages.ask("/ui/api/runs/one/actions/stop", "POST", b"{}", **OUR_ACTION, **headers)
        assert answer.status == 403, headers
    assert (
        pages.ask("/ui/api/runs", origin=pages.origin, sec_fetch_site="same-origin").status == 200
    )


def test_no_path_leads_out_of_the_folder(tmp_path: Path, serve: Serve) -> None:
    root = some(tmp_path / "runs")
    write_run(tmp_path, "secret")
    (root / "link").symlink_to(tmp_path / "secret")
    pages = serve(root)
    names = [
        "..%2Fsecret",
        "%2e%2e/secret",
        "..",
        "link",
        "one%2F..%2Ftwo",
        "%2Fetc",
        "one%00",
        ".",
        "none",
    ]
    for name in names:
        assert pages.ask(f"/ui/api/runs/{name}").status == 404, name
        assert pages.ask(f"/ui/api/runs/{name}/events").status == 404, name
    for path in (
        "../routes.py",
        "..%2Froutes.py",
        "%2e%2e/%2e%2e/routes.py",
        "/etc/passwd",
        "vendor",
        "manifest.json",
    ):
        assert pages.ask(f"/ui/static/{path}").status == 404, path
    assert "link" not in [row["name"] for row in pages.ask("/ui/api/runs").json["runs"]]
    with serving(root, only="one") as alone:
        assert [row["name"] for row in alone.ask("/ui/api/runs").json["runs"]] == ["one"]
        assert alone.ask("/ui/api/runs/two").status == 404


def test_actions_need_a_full_login_and_our_page(tmp_path: Path, serve: Serve) -> None:
    folder = some(tmp_path) / "one"
    pages = serve(tmp_path)
    ours = {**OUR_ACTION, "origin": pages.origin}

    def act(action: str = "stop", body: bytes = b"{}", **more: Any) -> int:
        return pages.ask(
            f"/ui/api/runs/one/actions/{action}", "POST", body, **{**ours, **more}
        ).status

    assert act(scope="read") == 403
    for header in ("x_astraflow_action", "origin"):
        without = {key: value for key, value in ours.items() if key != header}
        answer = pages.ask("/ui/api/runs/one/actions/stop", "POST", b"{}", **without)
        assert answer.status == 403, header
    assert not (folder / FILE).exists()
    assert pages.ask("/ui/api/runs/one/actions/stop").status == 405
    for action, body in (
        ("add", b"{}"), ("add", b'{"count": "0"}'), ("add", b'{"count": "257"}'), ("add", b'{"count": "-1"}'),
        ("drain", b"{}"), ("drain", b'{"raas": 1}'), ("swap", b"x"), ("drain", b"[]"),
        ("swap", b'{"place": "solver", "name": "a", "table": "1"}'),
        ("swap", b'{"place": "solver", "name": "a", "table": "{"}'),
        ("swap", b'{"place": "solver", "name": "a", "table": "%s"}' % (b"[" * 5000)),
    ):  # fmt: skip
        assert act(action, body) == 400, (action, body)
    assert act("reboot") == 404 and act(body=b"x" * 100_000) == 413
    assert act() == 409, "the run has ended"
    assert not (folder / FILE).exists()
    folder = folder.parent / "gone"
    with (folder / "launcher.lock").open("w") as launcher:
        assert lock(launcher.fileno())
        path = "/ui/api/runs/gone/actions/stop"
        assert pages.ask(path, "POST", b"{}", **ours).status == 503, "no dataflow answers"
    asked, failed = [json.loads(line) for line in (folder / FILE).read_text().splitlines()]
    assert asked["request"] == "/v1/stop" and asked["outcome"] == "asked"
    assert failed["outcome"].startswith("failed: ") and asked["id"] == failed["id"]
    assert asked["who"] and asked["name"] and asked["by"] == "pages"
    (shown,) = pages.ask("/ui/api/runs/gone/pool").json["audit"]
    assert shown == {**asked, "outcome": failed["outcome"]}


def test_every_answer_is_kept_from_scripts_of_others(tmp_path: Path, serve: Serve) -> None:
    pages = serve(some(tmp_path))
    for path in (
        "/ui/",
        "/ui/static/main.js",
        "/ui/api/runs",
        "/ui/api/runs/one/events",
        "/ui/api/runs/none",
    ):
        headers = pages.ask(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy and "http" not in policy
        assert (
            headers["x-content-type-options"] == "nosniff"
            and headers["cache-control"] == "no-store"
        )
    refused = pages.ask("/ui/", scope=None, accept="text/html")
    assert refused.status == 401 and refused.headers["content-type"].startswith("text/plain")
    for name, (content, kind) in static_files().items():
        if kind.startswith("text/html"):
            text = content.decode()
            assert (
                "onclick" not in text.lower()
                and "<style" not in text
                and "//" not in text.split("</head>")[0]
            ), name
        elif not name.startswith("vendor/"):
            assert b"innerHTML" not in content and b"dangerouslySetInnerHTML" not in content, name


def test_beyond_loopback_needs_tls(tmp_path: Path) -> None:
    app = pages_app(RunsFolder(tmp_path), BrowserSessions("s"), [])
    with pytest.raises(UserError, match="clear text"):
        pages_server(app, "0.0.0.0", 0, None, None)
    with pytest.raises(UserError, match="both"):
        pages_server(app, "127.0.0.1", 0, tmp_path / "c.pem", None)
    with pytest.raises(UserError, match="cannot be used"):
        pages_server(app, "127.0.0.1", 0, tmp_path / "c.pem", tmp_path / "k.pem")


def test_with_a_certificate_everything_is_encrypted(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    made = self_signed(("127.0.0.1",), timedelta(days=1))
    certificate.write_bytes(made.public)
    key.write_bytes(made.key)
    sessions = BrowserSessions("a secret of this test")
    app = pages_app(RunsFolder(tmp_path), sessions, [])
    with behind(app, sessions, certificate, key) as pages:
        trusting = ssl.create_default_context(cafile=str(certificate))
        connection = http.client.HTTPSConnection(
            "127.0.0.1", pages.port, context=trusting, timeout=20
        )
        with closing(connection):
            connection.request("GET", pages.login_url().partition(str(pages.port))[2])
            answer = connection.getresponse()
        assert answer.status == 303 and "Secure" in str(answer.getheader("set-cookie"))
