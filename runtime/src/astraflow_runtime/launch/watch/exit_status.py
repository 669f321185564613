"""How a process ended, in words."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from astraflow_core.errors import AstraFlowError, RunFailed, UserError
from astraflow_core.protocols.launcher import ProcessState
from astraflow_runtime.telemetry.logs import parse_line

_USERS_MISTAKE = UserError.exit_code
_ROOT_CAUSE = re.compile(
    r"Root Cause.*?^\s*rank\s*: (\d+).*?^\s*exitcode\s*: -(\d+)", re.DOTALL | re.MULTILINE
)
KEEP_STATE = (
    "All its updates are lost. Set [checkpoint] every so that a trainer is restarted from its last checkpoint "
    "when it or one of its ranks is killed"
)
_MARK = "astraflow: "
"""What the command line puts before an error."""

_ORDINARY = ("DEBUG", "INFO")
_SHOWN_LINES = 6
"""Last lines of a process that ended without a word about why."""


def signal_name(number: int) -> str:
    """``"SIGKILL"``, with what may be behind it."""
    name = signal.Signals(number).name
    return f"{name} (out of memory?)" if number == signal.SIGKILL else name


def describe_end(state: ProcessState, when: str = "") -> str:
    """``"raas-0 was killed by SIGKILL"`` or ``"raas-0 ended with exit code 1"``, and ``when``."""
    code = state.exit_code
    assert code is not None
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    elif rank := killed_rank(state.last_lines):
        how = f"ended because {rank}"
    else:
        how = f"ended with exit code {code}"
    return " ".join(part for part in (state.name, how, when) if part)


def killed_rank(lines: Sequence[str]) -> str:
    """``"rank 1 was killed by SIGTERM"`` if torchrun says so of the rank that ended first; else empty."""
    found = _ROOT_CAUSE.search("\n".join(lines))
    return f"rank {found[1]} was killed by {signal_name(int(found[2]))}" if found else ""


def last_error(lines: Sequence[str]) -> str:
    """What a process said last about its own failure; empty if it said nothing."""
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith(_MARK):
            return "\n".join([lines[index].removeprefix(_MARK), *lines[index + 1 :]])
        parsed = parse_line(lines[index])
        if parsed is not None and parsed[0] in ("ERROR", "CRITICAL"):
            return parsed[2]
    return ""


def error_of(state: ProcessState, when: str, reason: str = "", remedy: str = "") -> AstraFlowError:
    """The error that the end of a process means for the run. ``reason`` is what the dataflow knows, ``remedy`` what
    helps if it was killed, or a rank of it."""
    own = last_error(state.last_lines)
    said = _fuller(reason, own) if reason else own
    if state.exit_code == _USERS_MISTAKE and said:
        return UserError(said if reason else f"{state.name}: {said}")
    killed = (state.exit_code or 0) < 0 or bool(killed_rank(state.last_lines))
    if reason and not killed:
        return RunFailed(said)
    what = describe_end(state, when)
    if said:
        what = f"{what}: {said}"
    if remedy and killed:
        what = f"{what}. {remedy}"
    tail = "" if said else "".join(f"\n  {line}" for line in _telling(state.last_lines))
    return RunFailed(f"{what}\nThe last lines of {state.name}:{tail}" if tail else what)


def _fuller(reason: str, own: str) -> str:
    """``reason``, with the process's own words where they say the same and more."""
    who, _, core = reason.partition(": ")
    return f"{who}: {own}" if core and core in own else reason


def _telling(lines: Sequence[str]) -> list[str]:
    """The last lines that are not a report of ordinary work."""
    parsed = [(line, parse_line(line)) for line in lines]
    telling = [line for line, record in parsed if record is None or record[0] not in _ORDINARY]
    return telling[-_SHOWN_LINES:]
