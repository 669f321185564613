"""The sandboxed interpreter as a tool."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from play import call, played, workflow

from astraflow_core.errors import PreflightError


def shown(said: list[str], **keys: Any) -> tuple[Any, str]:
    table = {"cpu_s": 1, "deadline_s": 60, **keys}
    trajectory, text = asyncio.run(played(workflow(python=table), *said, "done"))
    return trajectory.metrics, text


def test_code_is_run_and_its_output_shown() -> None:
    said = [
        call("python", code="x = 6 * 7\nprint('it is')\nx"),
        call("python", code="x"),
        call("python", code="open('/etc/passwd')"),
        call("python", source="1"),
    ]
    metrics, text = shown(said)
    assert "Each call begins anew." in text
    assert "<tool_response>\nit is\n42\n</tool_response>" in text
    assert "NameError: name 'x' is not defined" in text and "'/etc/passwd'" in text
    assert 'error: expected the arguments {"code": source}' in text
    assert (metrics["tool_calls"], metrics["tool_errors"]) == (1, 3)


@pytest.mark.slow
def test_an_episode_keeps_what_its_calls_define_and_no_other_finds_it() -> None:
    said = [
        call("python", code="x = 41"),
        call("python", code="x += 1\nx"),
        call("python", code="while True: pass"),
        call("python", code="'x' in globals()"),
    ]

    async def two() -> list[tuple[Any, str]]:
        playing = workflow(python={"cpu_s": 1, "deadline_s": 60, "state": "episode"})
        first = await played(playing, *said, "done")
        return [first, await played(playing, call("python", code="'x' in globals()"), "done")]

    (_, text), (_, other) = asyncio.run(two())
    assert "<tool_response>\n42\n" in text
    assert "error: it ran too long, and what it had defined is lost" in text
    assert text.rstrip().count("<tool_response>\nFalse\n") == 1
    assert "<tool_response>\nFalse\n" in other


def test_a_name_that_is_taken_and_a_package_that_is_missing_are_refused() -> None:
    with pytest.raises(PreflightError, match="'no_such_package': it is not installed here"):
        workflow(python={"packages": ["no_such_package"]})
