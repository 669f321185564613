"""Programs that are sent into the sandbox for tests of functions: arguments go in, results come out as JSON."""

from __future__ import annotations

import json
from typing import Any

# What the program prints goes to standard error, so that standard output has only results. The program is a literal
# in the text, and runs in a separate module with its own line numbers.
_CALLS = """
import sys as _sys, json as _json, os as _os
_calls = _json.loads(_sys.stdin.read())
_results = _os.fdopen(_os.dup(1), "w", encoding="utf-8")
_os.dup2(2, 1)
_namespace = {{"__name__": "__main__"}}
exec(compile({source}, "answer.py", "exec"), _namespace)
_results.write("null\\n")
_results.flush()
for _function, _arguments in _calls:
    _value = _json.dumps(_namespace[_function](*_arguments))
    _results.write(_value + "\\n")
    _results.flush()
"""
_CHECK = """
import os as _os
_done = _os.fdopen(_os.dup(1), "w")
_os.dup2(2, 1)
_namespace = {{"__name__": "__main__"}}
exec(compile({source}, "answer.py", "exec"), _namespace)
exec(compile({check}, "check.py", "exec"), _namespace)
_done.write({token} + "\\n")
_done.flush()
"""


def program_of_calls(source: str) -> str:
    """A program that runs ``source``, then makes the calls on its standard input, in order, until one fails."""
    return _CALLS.format(source=repr(source))


def calls(functions: list[tuple[str, list[Any]]]) -> str:
    """What that program is to read."""
    return json.dumps(functions)


def program_of_check(source: str, check: str, token: str) -> str:
    """A program that runs ``source`` and ``check``, and writes ``token`` if neither raises."""
    return _CHECK.format(source=repr(source), check=repr(check), token=repr(token))


def results(written: str) -> list[Any] | None:
    """The results of the calls: values as far as they are JSON, in which NaN and infinity are not; ``None`` if there
    was no call, since the program failed before."""
    found: list[Any] = []
    for line in written.splitlines():
        try:
            found.append(json.loads(line, parse_constant=_no_number))
        except (ValueError, RecursionError):
            break
    return found[1:] if found else None


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not JSON")
