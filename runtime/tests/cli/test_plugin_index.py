"""``astraflow plugins index`` and ``search``: untrusted reports, folders, wheels and servers."""

from __future__ import annotations

import json
import os
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from published_reports import content, linked, named, report, wheel_of, with_plugin

from astraflow_core.errors import UserError
from astraflow_runtime.cli import main
from astraflow_runtime.cli.installation.check_report import (
    FILE,
    LARGEST,
)
from astraflow_runtime.cli.installation.plugin_index import reading
from astraflow_runtime.cli.installation.plugin_index.collected import PublishedReport, collect
from astraflow_runtime.cli.installation.plugin_index.entries import NoReport, entry_of
from astraflow_runtime.cli.installation.plugin_index.page import as_page, standing


def test_an_index_is_made_and_searched(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (reports / "other.json").write_text("{}")
    (reports / "notes.txt").write_text("not a report")
    out = tmp_path / "made" / "index"
    assert main(["plugins", "index", str(reports), "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "left out: other.json: it is not a report" in said and "3 reports" in said
    entries = json.loads((out / "index.json").read_text())["distributions"]
    assert [(e["name"], e["version"]) for e in entries] == [
        ("astraflow-plugin-brevity", "1.10.0"),
        ("astraflow-plugin-brevity", "1.9"),
        ("later", "1.0"),
    ]
    assert (entries[0]["passed"], entries[0]["checks"]) == (1, 2)
    before = {file: file.read_bytes() for file in out.rglob("*.*")}
    assert main(["plugins", "index", str(reports), "--out", str(out)]) == 0
    assert {file: file.read_bytes() for file in out.rglob("*.*")} == before
    assert (out / "reports" / "astraflow-plugin-brevity-1.9.json").read_bytes() == (
        reports / "sub" / "older.json"
    ).read_bytes()
    assert [file.name for file in (out / "readmes").iterdir()] == ["later-1.0.txt"]
    assert (out / "readmes" / "later-1.0.txt").read_text() == "# Later\n"

    def found(*words: str) -> tuple[int, str]:
        code = main(["plugins", "search", *words, "--index", str(out)])
        return code, capsys.readouterr().out

    capsys.readouterr()
    code, said = found("REWARD", "shortest")
    assert code == 0 and said.count("brevity 1.") == 0 and said.count("reward brevity") == 2
    assert "incomplete" in said and "later" not in said
    code, said = found("later")
    assert "does not load" in said and said.rstrip().endswith("https://example.org/later")
    assert found("reward", "nothing") == (1, f"nothing in {out} has reward and nothing\n")
    assert main(["plugins", "search", "--json", "--index", str(out / "index.json")]) == 0
    assert json.loads(capsys.readouterr().out) == entries


def test_the_matrix_says_with_which_core_a_plugin_goes(reports: Path) -> None:
    old, new = entry_of(content()), entry_of(content(plugins=with_plugin(api=[1, 1])))
    assert [standing(old, core) for core in ((1, 0), (1, 2), (2, 0))] == [
        "incomplete", "loads", "does not load",
    ]  # fmt: skip
    assert [standing(new, core) for core in ((0, 9), (1, 1))] == ["does not load", "loads"]
    page = as_page([PublishedReport(old, b""), PublishedReport(new, b"")])
    assert '<th scope="col">API 1.0</th><th scope="col">API 1.1</th>' in page
    assert "<script" not in page and "default-src 'none'" in page


def test_a_page_links_to_the_pages_of_the_authors(reports: Path) -> None:
    url = "https://example.org/a?b=1&c=%22"
    (reports / "linked.json").write_bytes(content(**linked(url)))
    found, problems = collect(reports)
    assert problems == []
    page = as_page(found)
    assert (
        'href="https://example.org/a?b=1&amp;c=%22" rel="nofollow noopener noreferrer">Homepage<'
        in page
    )
    assert "A &lt;b&gt;bold&lt;/b&gt; claim" in page
    assert '<a href="readmes/later-1.0.txt">README</a>' in page
    assert '<a href="https://example.org/later"' in page
    assert page.count('href="reports/') == 4 and page.count("README") == 1


def test_a_wheel_is_indexed_by_its_own_metadata(reports: Path) -> None:
    told = "Name: later\nVersion: 2.0\nProject-URL: Run, javascript:alert(1)\nHome-page: https://x.org\n"
    wheel_of(reports / "later-2.0-py3-none-any.whl", told, **named("later", "2.0"))
    wheel_of(reports / "other-1.0-py3-none-any.whl", told, **named("other"))
    wheel_of(
        reports / "late.whl", "Name: later\nVersion: 3.0\n", "x = 1\n", **named("later", "3.0")
    )
    with zipfile.ZipFile(reports / "later-2.0-py3-none-any.whl") as wheel:
        (reports / "copy.json").write_bytes(wheel.read(f"later/{FILE}"))
    found, problems = collect(reports)
    assert problems[0].startswith(
        "late.whl: its report is for other files: they were changed after"
    )
    assert "the link 'Run': its address 'javascript:alert(1)' is not one of http://" in problems[1]
    assert problems[2:] == [
        "other-1.0-py3-none-any.whl: its report is for other 1.0, not for later 2.0"
    ]
    (entry,) = (each.entry for each in found if each.stem == "later-2.0")
    assert [(link.label, link.url) for link in entry.links] == [("Homepage", "https://x.org")]


def test_a_label_may_be_of_any_language_and_omitted_ones_are_reported(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = (
        "Name: Later\nVersion: 4.0\nProject-URL: Änderungen, https://x.org/a\nProject-URL: 主页 (中文), https://x.org/b\n"
        "Project-URL: a\u202eb, https://x.org/c\nProject-URL: Chat, irc://x.org\nProject-URL: <b>, https://x.org/d\n"
        + "".join(f"Project-URL: P{n}, https://x.org/{n}\n" for n in range(20))
    )
    wheel_of(reports / "later-4.whl", told, **named("later", "4.0"))
    assert main(["plugins", "index", str(reports), "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "later-4.whl: the link 'a\\u202eb': its label is not" in said
    assert "the link 'Chat': its address 'irc://x.org' is not one of http://" in said
    assert "the link '<b>': its label" in said and "the link 'P18': there are more than 20" in said
    entries = json.loads((tmp_path / "out" / "index.json").read_text())["distributions"]
    (links,) = (e["links"] for e in entries if e["version"] == "4.0")
    assert [link["label"] for link in links[:3]] == ["Änderungen", "主页 (中文)", "P0"]
    assert len(links) == 20


def test_two_spellings_are_one_distribution_and_what_is_gone_leaves_no_file(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    for number, name in enumerate(("My.Plugin", "my_plugin")):
        (reports / f"{number}.json").write_bytes(content(**named(name, "1.0")))
    assert main(["plugins", "index", str(reports), "--out", str(out)]) == 0
    assert "1.json: another report of my-plugin 1.0" in capsys.readouterr().out
    entries = json.loads((out / "index.json").read_text())["distributions"]
    assert [e["version"] for e in entries if e["name"] == "my-plugin"] == ["1.0"]
    assert (out / "readmes" / "later-1.0.txt").exists()
    (out / "reports" / "mine.json").write_text("{}")

    (reports / "0.json").unlink()
    (reports / "1.json").unlink()
    (reports / "later-1.0-py3-none-any.whl").unlink()
    assert main(["plugins", "index", str(reports), "--out", str(out)]) == 0
    assert list((out / "readmes").iterdir()) == []
    assert {file.name for file in (out / "reports").iterdir()} == {
        "mine.json", "astraflow-plugin-brevity-1.9.json", "astraflow-plugin-brevity-1.10.0.json",
    }  # fmt: skip
    for text, says in (
        ("[]", "its top level is not valid: expected a table, got a list"),
        ('{"format": 1}', "its top level is not valid: it lacks the key `distributions`"),
        ("<html>", "not valid JSON"),
    ):
        (out / "index.json").write_text(text)
        assert main(["plugins", "index", str(reports), "--out", str(out)]) == 2
        assert f"not an index of plugins: {says}" in capsys.readouterr().err


def test_an_index_in_the_folder_of_reports_is_not_read_again(
    reports: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["plugins", "index", str(reports), "--out", str(reports / "index")]) == 0
        assert "left out" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (linked("javascript:alert(1)"), r"links\[0\].url is not valid: expected an address"),
        (linked("java\nscript:alert(1)"), r"links\[0\].url is not valid: expected an address"),
        (linked("data:text/html,x"), r"links\[0\].url is not valid: expected an address"),
        (linked("//example.org"), r"links\[0\].url is not valid: expected an address"),
        (linked("HTTPS://example.org"), r"links\[0\].url is not valid: expected an address"),
        (
            linked('https://example.org/"onclick=x'),
            r"links\[0\].url is not valid: expected an address",
        ),
        (linked("https://example.org/<b>"), r"links\[0\].url is not valid: expected an address"),
        (linked("https://example.org/\n"), r"links\[0\].url is not valid: expected an address"),
        (linked("https://trusted.example@evil.example"), "is not an http or https address"),
        (linked("https://"), r"links\[0\].url is not valid: expected an address"),
        (linked("https:///etc/passwd"), "is not an http or https address"),
        (linked("https://[::1"), "is not an http or https address"),
        (linked("https://example.org", "<b>"), "1 to 40 visible"),
        (
            linked("https://example.org") | {"plugins": []},
            "plugins is not valid: expected a list whose length is >= 1",
        ),
        (
            {"distribution": linked("")["distribution"] | {"links": [{}] * 21}},
            "it lacks the key|<= 20",
        ),
        (
            {"distribution": linked("")["distribution"] | {"summary": "\u202egnp", "links": []}},
            "visible characters on one line",
        ),
        (
            named("<script>alert(1)</script>"),
            "distribution.(name|version) is not valid: expected letters",
        ),
        (named("brevity\n"), "distribution.(name|version) is not valid: expected letters"),
        (named("brevity", "1.0<b>"), "distribution.(name|version) is not valid: expected letters"),
        (named("brevity", "one"), "PEP 440.*one"),
        ({"verdict": "passed<img>"}, "'passed<img>' does not match its checks: 'incomplete'"),
        ({"verdict": "passed"}, "'passed' does not match its checks: 'incomplete'"),
        ({"verdict": "passed", "checks": []}, "no list of checks"),
        ({"verdict": "passed", "checks": "all"}, "no list of checks"),
        ({"verdict": "passed", "checks": [{}]}, "no list of checks"),
        (
            {"verdict": "passed", "checks": [{"verdict": "failed"}, {"verdict": "passed"}]},
            "'passed' does not match its checks: 'failed'",
        ),
        ({"plugins": with_plugin(name="\x1b[2J")}, "name is not valid: expected lower-case"),
        ({"plugins": with_plugin(api=[1, -1])}, ">= 0"),
        (
            {"plugins": with_plugin(components=[{"kind": "reward", "name": "../x\x00"}])},
            r"components\[0\].name is not valid: expected lower-case",
        ),
        ({"plugins": []}, "plugins is not valid: expected a list whose length is >= 1"),
        ({"plugins": "all"}, "expected a list, got a text"),
        ({"files": "sha256:javascript:"}, "files is not valid: expected 'sha256:'"),
        ({"distribution": None}, "distribution.name is not valid: expected a text, got nothing"),
        ({"format": 2}, "not a report"),
    ],
)
def test_malformed_reports_are_refused(changes: dict[str, Any], says: str) -> None:
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
    wheel_of(reports / "locked.whl", "Name: later\n")
    locked = bytearray((reports / "locked.whl").read_bytes())
    locked[locked.index(b"PK\x01\x02") + 8] |= 1  # the bit of an encrypted member
    (reports / "locked.whl").write_bytes(locked)
    assert main(["plugins", "index", str(reports), "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert "locked.whl: " in told.out and "encrypted" in told.out
    for part in ("changed.json: it was changed", "cut.json: ", "deep.json: ", "none.whl: "):
        assert part in told.out
    assert told.out.count("more than 1 MiB") == 2
    assert "has no report that can be used; `astraflow plugin check --json" in told.err
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


def test_a_pipe_is_not_an_index(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "index.json")
    for place in (tmp_path, tmp_path / "index.json"):
        with pytest.raises(
            UserError, match=r"index\.json is not a file; `astraflow plugins index`"
        ):
            reading.read_index(str(place))


def test_servers_are_bounded(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LARGEST", 1 << 20)
    for place, says in (
        (f"{server}/endless", "more than 1 MiB"),
        (f"{server}/moved", "file:///etc/passwd|redirect"),
        (f"{server}/none.json", "404"),
        (f"{server}/other", "not an index of plugins"),
        ("ftp://127.0.0.1/x", "begins with http"),
        ("file:///etc/passwd", "begins with http"),
        ("nowhere", "`astraflow plugins index` makes one"),
    ):
        with pytest.raises(UserError, match=says):
            reading.read_index(place)
    with pytest.raises(UserError, match=r"longer than 0\.3 s"):
        reading.read_index(f"{server}/slow", 0.3)
