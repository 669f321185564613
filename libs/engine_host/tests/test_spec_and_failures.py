"""What an engine host gets from its parent, and how it reports a failure."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

import astraflow_core
import astraflow_engine_host
import astraflow_wire
from astraflow_core.shared_secret import shared_secret
from astraflow_engine_host.failures import StackFrame, describe, is_ours, place_of
from astraflow_engine_host.spec import (
    TOKEN_VARIABLE,
    ChildSpec,
    child_environment,
    read_spec,
    write_spec,
)


def test_a_spec_is_read_as_it_was_written_and_only_by_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "state" / "spec.json"
    spec = ChildSpec(config="{}", directory="/d", raas="raas-0", parent=7, policy="a", replica=2)
    write_spec(file, spec)
    assert read_spec(file) == spec and spec.part == "a-2"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_token_goes_by_environment() -> None:
    found = child_environment("secret", {"MINE": "1"})
    assert (found[TOKEN_VARIABLE], found["MINE"]) == ("~" + shared_secret("secret"), "1")


@pytest.mark.parametrize("package", [astraflow_core, astraflow_wire, astraflow_engine_host])
def test_code_of_every_distribution_is_ours(package: object) -> None:
    assert is_ours(str(package.__file__))  # type: ignore[attr-defined]


def test_the_users_line_is_named_and_not_ours() -> None:
    ours = str(Path(astraflow_core.__file__).with_name("catalog.py"))
    beside = str(Path(astraflow_core.__file__).parent.parent / "users.py")
    assert not is_ours(beside)
    frames = [StackFrame("/u/reward.py", 3, "score"), StackFrame(ours, 9, "build")]
    assert place_of(frames) == "/u/reward.py:3 in score"
    assert place_of([StackFrame(ours, 9, "build")]) == f"{ours}:9 in build"
    assert place_of([]) == ""


def test_an_error_is_described_with_its_place() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        line = sys.exc_info()[2].tb_lineno  # type: ignore[union-attr]
        assert describe(error) == f"ValueError: two lines ({__file__}:{line})"


def test_a_key_that_a_prompt_lacks_is_reported_with_those_that_it_has() -> None:
    data = {"prompt": "x", "answer": 1}
    assert describe(KeyError("gold"), data).endswith("; the prompt's data has 'prompt', 'answer'")
    assert describe(KeyError("gold"), {}).endswith("; the prompt's data has no keys")
    many = describe(KeyError("gold"), dict.fromkeys(map(str, range(50))))
    assert many.endswith("'18', '19', …")
    for error in (KeyError("answer"), KeyError(), ValueError("gold"), IndexError("gold")):
        assert "data has" not in describe(error, data)
    assert describe(KeyError("gold")) == "KeyError: 'gold'"
