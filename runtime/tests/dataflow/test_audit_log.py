"""The audit log: the lines of one action are read as one, secrets are not in it, and a full disk stops nothing."""

from __future__ import annotations

import json
import logging

import pytest

from astraflow_runtime.audit_log import FILE, AuditLine, read_audit, write_audit


def test_lines_of_one_action_are_read_as_one(tmp_path):
    drain, stop = "/v1/raas/drain", "/v1/stop"
    lines = [
        {"time": 1.0, "by": "mcp", "id": "a", "who": "ada", "request": drain, "asked": {"raas": "r"}, "reason": "it idles", "outcome": "asked"},
        {"time": 2.0, "request": stop, "outcome": "refused: no", "role": "viewer", "name": "bob"},
        {"time": 3.0, "id": "a", "request": drain, "asked": {"raas": "r", "id": "a"}, "role": "run", "outcome": "done"},
        {"time": 4.0, "id": "a", "request": stop, "outcome": "done"},
        {"time": 5.0, "by": "mcp", "id": "a", "request": drain, "outcome": "failed: no answer came"},
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines)) + '\nnot JSON\n{"time": 6.0, "request": "/v1'
    (tmp_path / FILE).write_text(text)
    another, refused, action = read_audit(tmp_path)
    assert (another.request, another.time) == (stop, 4.0)  # an equal id alone does not join lines
    assert (refused.role, refused.name, refused.outcome) == ("viewer", "bob", "refused: no")
    assert (action.time, action.who, action.reason) == (1.0, "ada", "it idles")
    assert (action.role, action.asked["id"]) == ("run", "a")
    assert action.outcome == "failed: no answer came" and action.by == "mcp"
    assert read_audit(tmp_path, 1) == [another] and read_audit(tmp_path / "none") == []


def test_only_the_end_of_a_long_log_is_read(tmp_path):
    line = json.dumps({"request": "/v1/stop", "outcome": "done", "who": "x" * 1000}) + "\n"
    (tmp_path / FILE).write_text(line * 2000 + line.replace('"xx', '"yy'))
    found = read_audit(tmp_path, 5000)
    assert 950 < len(found) < 1000 and found[0].who.startswith("yy")


def test_secrets_are_hidden_wherever_they_are(tmp_path):
    asked = {"table": {"use": "greso", "api_key": "sk-SECRET1"}, "more": "x" * 5000}
    write_audit(tmp_path, AuditLine(request="/v1/x", asked=asked, outcome="failed: sk-SECRET1"))
    del asked["more"]
    write_audit(
        tmp_path, AuditLine(request="/v1/x", asked=asked, outcome="done", reason="sk-SECRET1")
    )
    short, long = read_audit(tmp_path)
    assert "SECRET1" not in (tmp_path / FILE).read_text()
    assert short.asked == {"table": {"use": "greso", "api_key": "***"}} and short.reason == "***"
    assert long.asked == "5051 bytes" and long.outcome == "failed: ***"


def test_a_line_that_the_disk_does_not_take_is_logged(tmp_path, caplog: pytest.LogCaptureFixture):
    (tmp_path / FILE).mkdir()
    with caplog.at_level(logging.WARNING):
        write_audit(tmp_path, AuditLine(request="/v1/stop", outcome="done"))
    assert "the audit log cannot be written" in caplog.text and "/v1/stop" in caplog.text
