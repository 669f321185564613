"""``python -m astraflow_trackers.host``: the process of one tracker.

It reads lines of JSON from standard input. The first specifies what to build: ``use``,
``options``, ``run`` (a :class:`~astraflow_core.types.RunInfo`), ``seed``, ``directory``, ``deadline_s``, ``disable`` and
``only`` (of ``[plugins]``). Each other is ``[method, arguments]``, or ``["metrics", [arguments, …]]`` for several steps.
It answers each with ``{"value": …}`` or ``{"error": …}`` in a line on what was its standard output; what a tracker prints
goes to standard error. When its input ends, it ends the tracker and itself, at the latest after ``deadline_s``.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any, TextIO

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.models import ComponentTable
from astraflow_core.errors import AstraFlowError
from astraflow_core.installed.provenance import lock_of
from astraflow_core.types import ComponentContext, RunInfo

KILLED = "killed"
"""State of a run whose launcher has gone without a word."""


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher says when the run ends
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    spec = json.loads(sys.stdin.readline() or "null")
    if spec is None:
        return
    lines: queue.Queue[str] = queue.Queue(maxsize=4)
    reader = threading.Thread(target=_read, args=(lines, float(spec["deadline_s"])), daemon=True)
    reader.start()
    code = _serve(spec, lines, answers)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of libraries must not keep it


def _read(lines: queue.Queue[str], deadline_s: float) -> None:
    """Pass on what comes; once nothing can come any longer, bound how long the rest may take."""
    for line in sys.stdin:
        lines.put(line)
    bound = threading.Timer(deadline_s, os._exit, (1,))
    bound.daemon = True
    bound.start()
    lines.put("")


def _serve(spec: dict[str, Any], lines: queue.Queue[str], answers: TextIO) -> int:
    try:
        tracker: Any = _build(spec)
        _answer(answers, {"value": None})
    except Exception as error:  # noqa: BLE001 - reported to the launcher, which ends this process
        _answer(answers, {"error": _as_text(error)})
        return 1
    begun = ended = False
    while line := lines.get():
        name, arguments = json.loads(line)
        try:
            value = _call(tracker, name, arguments, spec)
        except Exception as error:  # noqa: BLE001 - reported to the launcher, which ends this process
            _answer(answers, {"error": _as_text(error)})
            return 1
        begun, ended = begun or name == "started", ended or name == "ended"
        _answer(answers, {"value": value})
    if begun and not ended:
        tracker.ended(KILLED, {}, None)
    return 0


def _call(tracker: Any, name: str, arguments: Any, spec: dict[str, Any]) -> str:
    """Call the method; its value as a text."""
    if name == "started":
        return str(tracker.started(_run(spec), *arguments) or "")
    if name == "metrics":
        for each in arguments:
            tracker.metrics(*each)
    elif name == "ended":
        state, summary, curves = arguments
        tracker.ended(state, summary, Path(curves) if curves else None)
    elif name in ("rollouts", "spans"):
        getattr(tracker, name)(*arguments)
    else:
        raise ValueError(f"a tracker has no method {name!r}")
    return ""


def _build(spec: dict[str, Any]) -> Any:
    table = ComponentTable.model_validate({"use": spec["use"], **spec["options"]})
    directory = Path(spec["directory"])
    directory.mkdir(parents=True, exist_ok=True)
    context = ComponentContext(_run(spec), "launcher", "", int(spec["seed"]), directory)
    catalog = Catalog.discover(disable=spec["disable"], only=spec["only"])
    return catalog.locked(lock_of(context.run.directory)).build(Kind.TRACKER, table, context)


def _run(spec: dict[str, Any]) -> RunInfo:
    run = spec["run"]
    named = {key: tuple(run[key]) for key in ("policies", "engines")}
    return RunInfo(**{**run, **named, "directory": Path(run["directory"])})


def _as_text(error: BaseException) -> str:
    """The error in a line; its traceback goes to the log."""
    if isinstance(error, AstraFlowError):
        return str(error)
    traceback.print_exc()
    return f"{type(error).__name__}: {error}"


def _answer(answers: TextIO, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
