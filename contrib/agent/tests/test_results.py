"""Results of commands and services, and what is not a result."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from astraflow_contrib_agent.results import ResultReader
from astraflow_core.errors import WorkflowError


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (b"", None),
        (b"{}\n", None),
        (b'so\n{"reward": 0.5}\n\n', 0.5),
        (b'{"reward": null}', None),
        (b'{"rewards": {"p": 2}}', {"p": 2}),
        (b'{"turns": []}', {"turns": []}),
    ],
)
def test_results_are_read_without_a_word(
    said: bytes, found: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert ResultReader("a").of_output(said) == found
    assert not caplog.records


@pytest.mark.parametrize(
    ("said", "has"),
    [
        (b'{"score": 1}', "neither reward nor rewards"),
        (b'{"reward": null, "rewards": {"p": 1}}', "both reward and rewards"),
    ],
)
def test_an_object_that_says_no_reward_is_an_error(said: bytes, has: str) -> None:
    forms = (
        r"expected \{\"reward\": number\} or \{\"rewards\": \{policy: number\}\}, or \{\} to leave"
    )
    for read in (ResultReader("a").of_output, ResultReader("a").of_reply):
        with pytest.raises(WorkflowError, match=f"^agent a: .* has {has}; {forms}"):
            read(said)


def test_what_is_no_object_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = ResultReader("a")
    for said in (b"{}\nreward: one", b"1.0", b"[" * 100_000):
        assert reader.of_output(said) is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "agent a: the last line of its output, 'reward: one', is not a result; expected {" in (
        record.getMessage()
    )


def test_a_reward_before_the_last_line_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert ResultReader("a").of_output(b'{"reward": 1}\nbye\n') is None
    assert "an earlier line has a reward, which counts in the last one only" in caplog.text


def test_a_reply_may_have_many_lines(caplog: pytest.LogCaptureFixture) -> None:
    reader = ResultReader("a")
    assert reader.of_reply(b'{\n  "reward": 2\n}\n') == 2
    assert reader.of_reply(b" ") is None
    assert not caplog.records
    assert reader.of_reply(b"done") is None
    assert "agent a: its reply, 'done', is not a result" in caplog.text
