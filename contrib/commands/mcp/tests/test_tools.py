"""Tools about runs that left files: what they answer, and what they refuse."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import TextResourceContents

from astraflow_contrib_mcp.actions import check_missing
from astraflow_contrib_mcp.results import MOST_BYTES, result_of
from astraflow_contrib_mcp.runs import Runs
from astraflow_contrib_mcp.server import build_server
from astraflow_core.errors import UserError
from astraflow_runtime.cli import main

TOKEN = "t0ken-of-this-run-4711"
CONFIG = """
[run]
steps = 8
[reward]
use = "judge"
api_key = "sk-123456789"
url = "https://ann:pa55@judge.example/v1?api_key=sk-999"
max_tokens = 5
[reward.headers]
x-team = "letmein"
x-from = "$TEAM"
[workflow]
use = "single_turn"
token = "$JUDGE"
tokenizer = "qwen"
"""


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was ended, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASTRAFLOW_TOKEN", raising=False)
    folder = tmp_path / "runs" / "one"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "dataflow.json").write_text('{"url": "http://127.0.0.1:9"}')
    summary = {"state": "failed", "steps": 3, "error": f"no Bearer {TOKEN} for {TOKEN}"}
    (folder / "summary.json").write_text(json.dumps(summary))
    lines = [
        {"time": 1.0 + step, "policy": "solver", "step": step, "metrics": {"reward": step / 2}}
        for step in range(1, 4)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "config.toml").write_text("[run]\n")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "secret")
    return folder


def ask(*calls: tuple[str, dict[str, Any]], acting: bool = False) -> list[Any]:
    """The results of calls, one after the other."""

    async def asked() -> list[Any]:
        async with Client(build_server(Runs(), acting), cache=None) as client:
            return [await client.call_tool(name, arguments) for name, arguments in calls]

    return asyncio.run(asked())


def read(uri: str) -> str:
    """The text of a resource, or the error about it."""

    async def asked() -> str:
        async with Client(build_server(Runs(), False), cache=None) as client:
            try:
                found = (await client.read_resource(uri)).contents[0]
            except MCPError as error:
                return f"error: {error}"
            assert isinstance(found, TextResourceContents)
            return found.text

    return asyncio.run(asked())


def test_an_ended_run_is_read() -> None:
    listed, metrics, summary = ask(
        ("list_runs", {}),
        ("metrics", {"figures": ["reward"], "last": 2}),
        ("summary", {"run": "one"}),
    )
    assert [entry["run"] for entry in listed.structured_content["runs"]] == ["one"]
    steps = metrics.structured_content["policies"]["solver"]
    assert steps == [{"step": s, "time": 1.0 + s, "reward": s / 2} for s in (2, 3)]
    assert summary.structured_content["error"] == "no Bearer *** for ***"


def test_resources_hide_secrets() -> None:
    config = json.loads(read("astraflow://runs/one/config"))
    assert config["reward"]["api_key"] == "***" and config["reward"]["max_tokens"] == 5
    assert config["reward"]["url"] == "https://***@judge.example/v1?api_key=***"
    assert config["reward"]["headers"] == {"x-team": "***", "x-from": "$TEAM"}
    assert config["workflow"]["token"] == "$JUDGE" and config["workflow"]["tokenizer"] == "qwen"


HOSTILE: list[tuple[str, dict[str, Any], str]] = [
    ("status", {"run": "none"}, "there is no run 'none'"),
    ("status", {"run": "../secret"}, "there is no run '../secret'"),
    ("metrics", {"run": "/etc"}, "there is no run '/etc'"),
    ("metrics", {"run": "link"}, "there is no run 'link'"),
    ("metrics", {"run": "one\0"}, "there is no run"),
    ("metrics", {"run": "x" * 300}, "at most 255"),
    ("metrics", {"run": 7}, "string"),
    ("metrics", {"last": "many"}, "integer"),
    ("metrics", {"last": 10**9}, "less than or equal to 200"),
    ("metrics", {"figures": ["reward"] * 21}, "at most 20"),
    ("metrics", {"figures": ["rewards"]}, "it has: reward"),
    ("metrics", {"policy": "nobody"}, "it has those of: solver"),
    ("trace", {"subject": "folder", "id": "x"}, "'prompt' or 'group'"),
    ("status", {}, "has ended"),
    ("explain_key", {"key": "run.max_stalenes"}, "did you mean"),
    ("stop_run", {"run": "one", "reason": "because I can do it"}, "Unknown tool"),
]


def test_hostile_inputs_are_refused_with_a_reason() -> None:
    results = ask(*[(name, arguments) for name, arguments, _ in HOSTILE])
    for (name, arguments, says), result in zip(HOSTILE, results, strict=True):
        text = result.content[0].text
        assert result.is_error and says in text, (name, arguments, text)
        assert TOKEN not in text and len(text) < 5000


SWAP: dict[str, Any] = {"run": "one", "place": "prompts", "name": "greso"}


def test_unknown_arguments_are_refused_by_name() -> None:
    async def schemas() -> dict[str, Any]:
        async with Client(build_server(Runs(), True), cache=None) as client:
            return {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}

    known = asyncio.run(schemas())
    assert all(schema["additionalProperties"] is False for schema in known.values())
    acting = {"add_raas", "drain_raas", "swap_data_policy", "rollback_data_policy", "stop_run"}
    assert {name for name, s in known.items() if "run" in s.get("required", ())} == acting
    calls = [(name, {"run_name": "S3CRET"}) for name in known]
    for name, result in zip(known, ask(*calls, acting=True), strict=True):
        text = result.content[0].text
        assert result.is_error and "run_name" in text and "S3CRET" not in text, name


def test_actions_name_their_run_and_have_a_readable_reason(run: Path) -> None:
    (run / "summary.json").unlink()
    calls: list[tuple[str, dict[str, Any]]] = [
        ("add_raas", {"reason": "it is the end of this test"}),
        *(
            ("add_raas", {"run": "one", "reason": reason})
            for reason in (
                " " * 20,
                "x" + "\u200b" * 20,
                "it goes\x1b[2J on and on",
                "two lines\nof a reason",
            )
        ),
    ]
    for call, result in zip(calls, ask(*calls, acting=True), strict=True):
        assert result.is_error and "validation error" in result.content[0].text, call
    assert not (run / "audit.jsonl").exists()


def test_few_requested_raas_may_be_missing() -> None:
    pool = {"size": 2, "added": 10, "drained": 1}
    config = {"raas": {"replicas": 3}}
    check_missing({"pool": pool}, config, 6)
    with pytest.raises(UserError, match="10 RaaS that were requested have not registered yet"):
        check_missing({"pool": pool}, config, 7)
    check_missing({"pool": {**pool, "size": 12}}, config, 16)
    check_missing({"pool": {"size": 0, "added": 0, "drained": 0}}, {"raas": {"replicas": 50}}, 16)


def test_no_error_repeats_what_is_hidden(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise UserError("greso.api_key: unknown key (received 'sk-SECRET1')")

    monkeypatch.setattr("astraflow_contrib_mcp.actions.swap_data_policy", refuse)
    (run / "summary.json").unlink()
    table = {"use": "greso", "api_key": "sk-SECRET1"}
    (failed,) = ask(
        ("swap_data_policy", {**SWAP, "table": table, "reason": "it makes no progress"}),
        acting=True,
    )
    assert failed.is_error and "unknown key (received '***')" in failed.content[0].text
    kept = (run / "audit.jsonl").read_text()
    assert "SECRET1" not in kept and "unknown key (received '***')" in kept


def test_actions_need_a_reason_and_a_running_run(run: Path) -> None:
    why = "it is the end of this test"
    calls: list[tuple[str, dict[str, Any]]] = [
        ("stop_run", {"run": "one"}),
        ("stop_run", {"run": "one", "reason": "x"}),
        ("stop_run", {"run": "one", "reason": "x" * 100_000}),
        ("stop_run", {"reason": why}),
        ("stop_run", {"run": "one", "reason": why}),
        ("add_raas", {"run": "one", "count": 0, "reason": why}),
        ("add_raas", {"run": "one", "count": 1000, "reason": why}),
        ("swap_data_policy", {**SWAP, "table": "x = 1", "reason": why}),
        ("swap_data_policy", {**SWAP, "table": {}, "reason": why}),
    ]
    for call, result in zip(calls, ask(*calls, acting=True), strict=True):
        assert result.is_error, call
    assert not (run / "audit.jsonl").exists()


def test_an_action_that_fails_is_kept_with_its_reason(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("astraflow_contrib_mcp.actions.ACT_S", 0.3)
    (run / "summary.json").unlink()  # and nothing listens on its port
    (failed,) = ask(("stop_run", {"run": "one", "reason": "it makes no progress"}), acting=True)
    assert failed.is_error and "no dataflow answers" in failed.content[0].text
    asked, outcome = [json.loads(line) for line in (run / "audit.jsonl").read_text().splitlines()]
    assert asked["outcome"] == "asked" and asked["reason"] == "it makes no progress"
    assert outcome["outcome"].startswith("failed: no dataflow answers")


@pytest.mark.parametrize(
    "uri",
    [
        "astraflow://runs/none/config",
        "astraflow://runs/..%2Fsecret/config",
        "astraflow://runs/../../secret/config",
        "astraflow://runs/one/token",
        "file:///etc/passwd",
    ],
)
def test_no_resource_leads_elsewhere(uri: str) -> None:
    assert read(uri).startswith("error: ")


@pytest.mark.slow
def test_a_result_is_bounded_and_says_what_is_left_out() -> None:
    large = {"rows": [{"text": "x" * 5000, "at": at} for at in range(5000)], "k" * 9000: 1}
    found = result_of(large, None)
    assert len(json.dumps(found)) <= MOST_BYTES
    assert found["rows"][-1]["at"] == 4999 and "items are left out" in found["rows"][0]
    assert "more characters" in found["rows"][-1]["text"]
    cut = result_of({"url": "x" * 1990 + " http://ann:pa55word-that-is-long@host/"}, None)
    assert "pa55" not in cut["url"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["none"], "no run 'none'"),
        (["one", "--allow-actions"], "has ended"),
        (["--http", "127.0.0.1:0"], "needs --token-file"),
        (["--http", "nowhere", "--token-file", "t"], "expected HOST:PORT"),
        (["--http", "0.0.0.0:0", "--token-file", "t"], "in clear text"),
        (["--token-file", "t"], "belong to --http"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["mcp", *words]) == 2
    assert says in capsys.readouterr().err


def test_the_newest_run_that_has_not_ended_is_meant(run: Path) -> None:
    newer = run.parent / "two"
    newer.mkdir()
    (newer / "config.toml").write_text("[run]\n")
    assert Runs().find("") == newer.resolve()
    (newer / "summary.json").write_text("{}")
    assert Runs(run).find("") == run and Runs(run).all() == [run]
