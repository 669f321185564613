"""Coding agents of the command line, which know nothing of AstraFlow, read a file and report its content."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from agent_clients.environment import CLAUDE_CODE, CODEX, PI, program_of_npm
from agent_clients.players import TEMPLATE, TEMPLATES, Player, output_of, player, sampled, trained

from astraflow_gateway.server import Gateway

pytestmark = [
    pytest.mark.backend,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.turns(
        "libs/gateway/src/**/*.py",
        "contrib/agent/src/**/*.py",
        "tests/agent_clients/*.py",
        unit="coding agents",
    ),
]

ANSWER = "It is 23."
QUESTION = "What is in number.txt?"
THINKING = TEMPLATES / "Qwen-Qwen3-0.6B.jinja"
THOUGHT = "<think>\nI look.\n</think>\n\n"
Called = tuple[list[str], dict[str, str]]
"""The command line of an agent, and its environment."""


def played(
    home: Path,
    called: Callable[[str, str, Path], Called],
    calls: list[tuple[str, dict[str, Any]]],
    template: Path = TEMPLATE,
) -> Player:
    """An episode in which the model calls tools in turn, then answers. ``called`` gets the URL of the gateway, the key
    and the agent's home, in whose folder ``work`` the agent runs."""
    work = home / "work"
    work.mkdir()
    (work / "number.txt").write_text("23")
    thought = THOUGHT if template == THINKING else ""

    def says(policy: str, text: str) -> str:
        done = text.count("</tool_response>")
        if done >= len(calls):
            read = re.search(r"23\s*</tool_response>", text)
            return thought + (ANSWER if read else "I found nothing.")
        name, arguments = calls[done]
        call = json.dumps({"name": name, "arguments": arguments})
        return f"{thought}<tool_call>\n{call}\n</tool_call>"

    async def play() -> Player:
        async with Gateway() as gateway:
            one = player(gateway, says, template)
            command, variables = called(gateway.url, one.key, home)
            variables = {"HOME": str(home), **variables}
            said = await output_of(command, variables, folder=work)
        assert ANSWER in said, (said, one.episode.refusal)
        return one

    return asyncio.run(play())


def counted(one: Player) -> dict[str, float]:
    """The metrics of the episode, of which what was sampled is trained."""
    assert trained(one.episode) == sampled(one.policies)
    return one.episode.metrics()


@pytest.mark.parametrize("api", ["openai-completions", "openai-responses", "anthropic-messages"])
def test_pi_reads_a_file(api: str, tmp_path: Path) -> None:
    pi = program_of_npm(PI)

    def called(url: str, key: str, home: Path) -> Called:
        below = "" if api.startswith("anthropic") else "/v1"
        provider = {
            "baseUrl": f"{url}{below}", "api": api, "apiKey": key,
            "models": [{"id": "p", "name": "p", "contextWindow": 100_000, "maxTokens": 400}],
        }  # fmt: skip
        settings = home / ".pi" / "agent"
        settings.mkdir(parents=True)
        (settings / "models.json").write_text(json.dumps({"providers": {"ours": provider}}))
        options = ["--provider", "ours", "--model", "p", "--no-session", "--offline", "-p"]
        return [pi, *options, QUESTION], {}

    metrics = counted(played(tmp_path, called, [("read", {"path": "number.txt"})]))
    assert metrics["agent_calls"] >= 2 and metrics["prompts_continued"] >= 1, metrics


@pytest.mark.parametrize("template", [TEMPLATE, THINKING])
def test_claude_code_searches_for_a_tool_and_reads_a_file(template: Path, tmp_path: Path) -> None:
    claude = program_of_npm(CLAUDE_CODE)

    def called(url: str, key: str, home: Path) -> Called:
        return [claude, "-p", QUESTION, "--allowedTools", "Read"], {
            "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key, "ANTHROPIC_MODEL": "p",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
        }  # fmt: skip

    calls: list[tuple[str, dict[str, Any]]] = [
        ("ToolSearch", {"query": "select:WebFetch", "max_results": 1}),
        ("Read", {"file_path": str(tmp_path / "work" / "number.txt")}),
    ]
    one = played(tmp_path, called, calls, template)
    metrics = counted(one)
    assert metrics["agent_calls"] == 3 and metrics["prompts_continued"] == 2, metrics
    assert len(one.episode.sequences()) == 1 and one.episode.refusal == ""
    # A tool that a search finds is described in the requests after it, and not before.
    assert [asked.text.count('"name": "WebFetch"') for asked in one.policies.asked] == [0, 1, 1]


CODEX_SETTINGS = {
    "model": "p", "model_provider": "ours", "approval_policy": "never", "sandbox_mode": "danger-full-access",
    "web_search": "disabled", "analytics.enabled": False, "model_providers.ours.name": "ours",
    "model_providers.ours.env_key": "OPENAI_API_KEY", "model_providers.ours.wire_api": "responses",
}  # fmt: skip


@pytest.mark.parametrize("template", [TEMPLATE, THINKING])
def test_codex_calls_a_tool_of_a_namespace_and_reads_a_file(template: Path, tmp_path: Path) -> None:
    codex = program_of_npm(CODEX)

    def called(url: str, key: str, home: Path) -> Called:
        settings = home / ".codex"
        settings.mkdir()
        given = {**CODEX_SETTINGS, "model_providers.ours.base_url": f"{url}/v1"}
        options = [
            part for name, value in given.items() for part in ("-c", f"{name}={json.dumps(value)}")
        ]
        command = [codex, "exec", "--skip-git-repo-check", *options, QUESTION]
        return command, {"CODEX_HOME": str(settings), "OPENAI_API_KEY": key}

    calls: list[tuple[str, dict[str, Any]]] = [
        ("multi_agent_v1.close_agent", {"target": "nobody"}),
        ("exec_command", {"cmd": "cat number.txt"}),
    ]
    one = played(tmp_path, called, calls, template)
    metrics = counted(one)
    assert metrics["agent_calls"] == 3 and metrics["prompts_continued"] == 2, metrics
    assert len(one.episode.sequences()) == 1 and one.episode.refusal == ""
    assert "invalid agent id nobody" in one.policies.asked[1].text
