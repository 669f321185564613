"""How a process ended, in words."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from astraflow_core.errors import AstraFlowError, RunFailed, UserError
from astraflow_core.protocols.launcher import ProcessState
from astraflow_core.telemetry.logs import parse_line

_USERS_MISTAKE = UserError.exit_code
_MARK = "astraflow: "
"""What the command line puts before an error."""


def describe_end(state: ProcessState, when: str = "") -> str:
    """``"raas-0 was killed by SIGKILL"`` or ``"raas-0 ended with exit code 1"``, and ``when``."""
    code = state.exit_code
    assert code is not None
    if code < 0:
        how = f"was killed by {signal.Signals(-code).name}"
    else:
        how = f"ended with exit code {code}"
    return " ".join(part for part in (state.name, how, when) if part)


def complaint(lines: Sequence[str]) -> str:
    """What a process said last about its own failure; empty if it said nothing."""
    for index in range(len(lines) - 1, -1, -1):
        if lines[index].startswith(_MARK):
            return "\n".join([lines[index].removeprefix(_MARK), *lines[index + 1 :]])
        parsed = parse_line(lines[index])
        if parsed is not None and parsed[0] in ("ERROR", "CRITICAL"):
            return parsed[2]
    return ""


def error_of(state: ProcessState, when: str, reason: str = "") -> AstraFlowError:
    """The error that the end of a process means for the run. ``reason`` is what the dataflow knows."""
    said = reason or complaint(state.last_lines)
    if state.exit_code == _USERS_MISTAKE and said:
        return UserError(f"{state.name}: {said}" if said != reason else said)
    what = describe_end(state, when)
    if said:
        what = f"{what}: {said}"
    tail = "".join(f"\n  {line}" for line in state.last_lines)
    return RunFailed(f"{what}\nThe last lines of {state.name}:{tail}" if tail else what)
