"""New interpreters at the price of a fork: one has imported what a program needs to begin, and forks for each question."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
from functools import cache
from typing import Any

_CHANGES = "PYTEST_CURRENT_TEST"
_SERVE = """
import json as _json, os as _os, sys as _sys, traceback as _traceback

_answers = _os.fdopen(_os.dup(1), "w")
_os.dup2(2, 1)  # what is printed is no answer
for _line in _sys.stdin:
    _child = _os.fork()
    if not _child:
        try:
            _text = _json.dumps([answer(_json.loads(_line)), ""], default=str)
        except BaseException:
            _text = _json.dumps([None, _traceback.format_exc()])
        print(_text, file=_answers, flush=True)
        _os._exit(0)
    _status = _os.waitpid(_child, 0)[1]
    if _status:
        _text = f"the process ended with {_os.waitstatus_to_exitcode(_status)}"
        print(_json.dumps([None, _text]), file=_answers, flush=True)
"""


class InterpreterFailed(Exception):
    """The program raised, ended, or did not answer in time: the text says which."""


def ask(program: str, question: Any, deadline_s: float, hash_seed: int | None = None) -> Any:
    """The result of the function ``answer`` of ``program`` for ``question``; both are JSON.

    It runs in a fork of an interpreter that has executed ``program`` and nothing else, with this one's ``sys.path``,
    folder and environment variables and, if given, another seed of hashes. Raises :class:`InterpreterFailed`, after
    ``deadline_s`` seconds at the latest.
    """
    variables = {name: value for name, value in os.environ.items() if name != _CHANGES}
    variables["PYTHONPATH"] = os.pathsep.join(entry for entry in sys.path if entry)
    if hash_seed is not None:
        variables["PYTHONHASHSEED"] = str(hash_seed)
    process = _started(program, os.getcwd(), tuple(sorted(variables.items())))
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(question, default=str).encode() + b"\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], deadline_s)[0]:
            raise InterpreterFailed(f"no answer within {deadline_s:g} s")
        line = process.stdout.readline()
    except BrokenPipeError:
        line = b""
    except InterpreterFailed:
        _end(process)
        raise
    if not line:
        raise InterpreterFailed(f"the interpreter ended with {_end(process)}")
    answer, error = json.loads(line)
    if error:
        raise InterpreterFailed(error.strip())
    return answer


@cache
def _started(
    program: str, folder: str, variables: tuple[tuple[str, str], ...]
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # the program is ours, questions go in by standard input
        [sys.executable, "-c", program + _SERVE],
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    atexit.register(_end, process)
    return process


def _end(process: subprocess.Popen[bytes]) -> int:
    """Its exit status. A fork that hangs ends too, and the next question starts another interpreter."""
    _started.cache_clear()
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
    return process.wait()
