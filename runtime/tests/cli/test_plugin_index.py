"""``astraflow plugins index`` and ``search``: reports of strangers, folders, wheels and servers."""

from __future__ import annotations

import json
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from astraflow_core.errors import UserError
from astraflow_runtime.cli import main
from astraflow_runtime.cli.installation.check_report import FILE, LARGEST, digest_of
from astraflow_runtime.cli.installation.plugin_index import reading
from astraflow_runtime.cli.installation.plugin_index.entries import NoReport, entry_of
from astraflow_runtime.cli.installation.plugin_index.page import as_page, standing


def report(**changes: Any) -> dict[str, Any]:
    told = {
        "format": 1,
        "distribution": {"name": "astraflow-plugin-brevity", "version": "1.10.0"},
        "files": "sha256:" + "0" * 64,
        "plugins": [
            {
                "name": "brevity",
                "api": [1, 0],
                "components": [{"kind": "reward", "name": "brevity", "capabilities": ["blocking"]}],
                "commands": ["shortest"],
                "hooks": [],
            }
        ],
        "core_api": [1, 0],
        "checks": [
            {"name": "manifest", "verdict": "passed", "summary": "", "problems": []},
            {"name": "mypy", "verdict": "not checked", "summary": "", "problems": []},
        ],
        "verdict": "incomplete",
    } | changes
    return told | {"digest": digest_of(told)}


def content(**changes: Any) -> bytes:
    return json.dumps(report(**changes)).encode()


def named(name: str, version: str = "1.0") -> dict[str, Any]:
    return {"distribution": {"name": name, "version": version}}


def with_plugin(**changes: Any) -> list[dict[str, Any]]:
    return [report()["plugins"][0] | changes]


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.json").write_bytes(content())
    (folder / "sub" / "older.json").write_bytes(content(**named("astraflow-plugin-brevity", "1.9")))
    later = with_plugin(name="later", api=[1, 1], commands=[])
    with zipfile.ZipFile(folder / "later-2.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"later/{FILE}", content(plugins=later, core_api=[1, 1], **named("later")))
    return folder


def test_an_index_is_made_and_searched(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (reports / "other.json").write_text("{}")
    (reports / "notes.txt").write_text("no report")
    out = tmp_path / "made" / "index"
    assert main(["plugins", "index", str(reports), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "left out: other.json: it is no report" in said and "3 reports" in said
    entries = json.loads((out / "index.json").read_text())["distributions"]
    assert [(e["name"], e["version"]) for e in entries] == [
        ("astraflow-plugin-brevity", "1.10.0"),
        ("astraflow-plugin-brevity", "1.9"),
        ("later", "1.0"),
    ]
    assert (entries[0]["passed"], entries[0]["checks"]) == (1, 2)
    before = (out / "index.json").read_bytes(), (out / "index.html").read_bytes()
    assert main(["plugins", "index", str(reports), "--out", str(out)]) == 0
    assert ((out / "index.json").read_bytes(), (out / "index.html").read_bytes()) == before

    def found(*words: str) -> tuple[int, str]:
        code = main(["plugins", "search", *words, "--index", str(out)])
        return code, capsys.readouterr().out

    capsys.readouterr()
    code, said = found("REWARD", "shortest")
    assert code == 0 and said.count("brevity 1.") == 0 and said.count("reward brevity") == 2
    assert "incomplete" in said and "later" not in said
    code, said = found("later")
    assert "does not load" in said
    assert found("reward", "nothing") == (1, f"nothing in {out} has reward and nothing\n")
    assert main(["plugins", "search", "--json", "--index", str(out / "index.json")]) == 0
    assert json.loads(capsys.readouterr().out) == entries


def test_the_matrix_says_with_which_core_a_plugin_goes(reports: Path) -> None:
    old, new = entry_of(content()), entry_of(content(plugins=with_plugin(api=[1, 1])))
    assert [standing(old, core) for core in ((1, 0), (1, 2), (2, 0))] == [
        "incomplete", "loads", "does not load",
    ]  # fmt: skip
    assert [standing(new, core) for core in ((0, 9), (1, 1))] == ["does not load", "loads"]
    page = as_page([old, new])
    assert '<th scope="col">API 1.0</th><th scope="col">API 1.1</th>' in page
    assert "<script" not in page and "default-src 'none'" in page


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (named("<script>alert(1)</script>"), "matching regex"),
        (named("brevity\n"), "matching regex"),
        (named("brevity", "1.0<b>"), "matching regex"),
        (named("brevity", "one"), "Invalid version"),
        ({"verdict": "passed<img>"}, "Invalid enum"),
        ({"plugins": with_plugin(name="\x1b[2J")}, "matching regex"),
        ({"plugins": with_plugin(api=[1, -1])}, ">= 0"),
        ({"plugins": with_plugin(components=[{"kind": "reward", "name": "../x\x00"}])}, "regex"),
        ({"plugins": []}, "length >= 1"),
        ({"plugins": "all"}, "Expected `array`"),
        ({"files": "sha256:javascript:"}, "matching regex"),
        ({"distribution": None}, "Expected `str`"),
        ({"format": 2}, "no report"),
    ],
)
def test_what_a_stranger_writes_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(NoReport, match=says):
        entry_of(content(**changes))


def test_a_changed_or_damaged_report_is_left_out(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in reports.rglob("*.*"):
        file.unlink()
    (reports / "changed.json").write_text(json.dumps(report() | {"verdict": "passed"}))
    (reports / "cut.json").write_bytes(content()[:100])
    (reports / "deep.json").write_bytes(b"[" * 100_000)
    (reports / "large.json").write_bytes(b" " * (LARGEST + 1))
    (reports / "none.whl").write_bytes(b"PK")
    with zipfile.ZipFile(reports / "bomb.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"bomb/{FILE}", b" " * (64 * LARGEST))
    assert main(["plugins", "index", str(reports), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    for part in ("changed.json: it was changed", "cut.json: ", "deep.json: ", "none.whl: "):
        assert part in told.out
    assert told.out.count("more than 1 MiB") == 2
    assert "has no report; `astraflow plugin check --json" in told.err
    assert main(["plugins", "index", "nowhere", "--out", "x"]) == 2
    assert "there is no folder nowhere" in capsys.readouterr().err


class Server(BaseHTTPRequestHandler):
    body: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        if self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
        else:
            self.send_response(200 if "index.json" in self.path else 404)
        self.end_headers()
        try:
            if self.path.startswith("/endless"):
                while True:
                    self.wfile.write(b" " * (1 << 20))
            if self.path.startswith("/slow"):
                for _ in range(100):
                    self.wfile.write(b" ")
                    time.sleep(0.02)
            self.wfile.write(self.body)
        except ConnectionError:
            return

    def log_message(self, *told: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    serving = HTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{serving.server_port}"
    serving.shutdown()
    thread.join(10)
    serving.server_close()


def test_an_index_is_read_from_a_server(
    server: str,
    reports: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["plugins", "index", str(reports), "--out", str(tmp_path)])
    monkeypatch.setattr(Server, "body", (tmp_path / "index.json").read_bytes())
    capsys.readouterr()
    assert main(["plugins", "search", "later", "--index", f"{server}/plugins/"]) == 0
    assert "later" in capsys.readouterr().out
    assert len(reading.read_index(f"{server}/index.json").distributions) == 3


def test_servers_are_bounded(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LARGEST", 1 << 20)
    for place, says in (
        (f"{server}/endless", "more than 1 MiB"),
        (f"{server}/moved", "file:///etc/passwd|redirect"),
        (f"{server}/none.json", "404"),
        (f"{server}/other", "no index of plugins"),
        ("ftp://127.0.0.1/x", "begins with http"),
        ("file:///etc/passwd", "begins with http"),
        ("nowhere", "`astraflow plugins index` makes one"),
    ):
        with pytest.raises(UserError, match=says):
            reading.read_index(place)
    with pytest.raises(UserError, match=r"longer than 0\.3 s"):
        reading.read_index(f"{server}/slow", 0.3)
