"""``astraflow ui``: its link logs in, and mistakes of a user are reported."""

from __future__ import annotations

import re
import signal
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from served_runs import write_run

from astraflow_runtime.cli import main
from astraflow_testing.runs import User


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (["--bind", "0.0.0.0"], "clear text"),
        (["--certificate", "c.pem"], "give both"),
        (
            [
                "--port",
                "1",
                "--bind",
                "192.0.2.1",
                "--certificate",
                "c.pem",
                "--private-key",
                "k.pem",
            ],
            "cannot be used",
        ),
    ],
)
def test_mistakes_are_said(
    more: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ui", str(tmp_path / "none"), *more]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert main(["ui", str(tmp_path), *more]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("port", ["65536", "-1", "1e3", "９"])
def test_what_is_no_port_is_said(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", f"--port={port}"]) == 2
    assert "is not a port, a number from 0 to 65535" in capsys.readouterr().err


def test_the_link_that_is_printed_logs_in_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "one")
    user = User(tmp_path)
    try:
        process = user.start("ui", "--port", "0", "--read-only")
        assert process.stdout is not None
        assert "runs in" in process.stdout.readline()
        (link,) = re.findall(
            r"http://127\.0\.0\.1:\d+/ui/login\?key=\S+", process.stdout.readline()
        )
        jar = urllib.request.HTTPCookieProcessor(CookieJar())
        opener = urllib.request.build_opener(jar)
        with opener.open(link, timeout=20) as answer:
            assert b"AstraFlow" in answer.read()
        with opener.open(f"{link.partition('login')[0]}api/session", timeout=20) as answer:
            assert b'"scope":"read"' in answer.read()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    finally:
        user.close()
