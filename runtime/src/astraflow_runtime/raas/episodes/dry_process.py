"""Runs the dry call of a run's workflow and reward in a separate process.

Forked where that is safe, since it then costs a tenth of a second; else ``python -m astraflow_runtime.raas.episodes.dry_process
SPEC FD``, which costs what an interpreter and its imports do.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import catalog_of_run
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import AstraFlowError, PreflightError, UserError
from astraflow_core.types import Prompt
from astraflow_engine_host.failures import StackFrame, describe, place_of
from astraflow_engine_host.spec import ChildSpec, read_spec, write_spec
from astraflow_runtime.raas.episodes.dry_notes import ASYNC
from astraflow_runtime.raas.user_objects import FILE
from astraflow_runtime.telemetry.progress import progress
from astraflow_wire.host.parent import end_with, signal_at_parent_death
from astraflow_wire.messages import SamplingMessage, Task, encode

VARIABLE = "ASTRAFLOW_DRY_CALL_S"
LONGEST_S = 10.0
LEFT_OUT = f"set {VARIABLE}=none to skip it"
BLOCKS = "so it blocks the event loop of its RaaS"
"""Part of the note on awaited code that blocked in a separate call."""
_GRACE_S = 1.0
"""Seconds after the deadline for the process to report where it is."""

_FAR_S = 86400.0
_TASK, _LOG = "task", "said.log"
_READ_BYTES = 65536


@dataclass
class _Word:
    """A message of the process: ``state`` is ``at``, ``passed``, ``refused``, ``failed``,
    ``unsure`` or ``late``.
    """

    state: str = "at"
    text: str = ""
    who: str = "the workflow"


def longest_s() -> float | None:
    """The time limit of a dry call, from the environment; ``None`` if dry calls are off. Raises
    :class:`UserError`.
    """
    said = os.environ.get(VARIABLE, "")
    if not said:
        return LONGEST_S
    if said == "none":
        return None
    try:
        seconds = float(said)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UserError(f"{VARIABLE} is {said!r}; expected seconds above 0, or none")
    return seconds


def is_live(config: RunConfig, catalog: Catalog) -> bool:
    """Whether the run's workflow waits for external requests, so that a dry call is not possible."""
    workflow = config.workflow
    return workflow is not None and "live" in catalog.flags(Kind.WORKFLOW, workflow.use)


def check_evaluated(config: RunConfig, catalog: Catalog) -> None:
    """Reject ``[eval.sets]`` for a workflow that waits for external requests: its prompts would
    never be played.
    """
    if config.workflow is not None and config.eval.sets and is_live(config, catalog):
        raise PreflightError(
            f"eval.sets: workflow {config.workflow.use!r} waits for requests from outside, so it cannot play the "
            "prompts of an evaluation; remove [eval.sets], and evaluate with `astraflow eval RUN --config FILE`, where "
            "FILE has a workflow that plays prompts itself"
        )


def dry_call(
    config: RunConfig,
    catalog: Catalog,
    prompt: Prompt,
    objects: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> str:
    """Call workflow and reward once with ``prompt`` and made-up completions; ``objects``: the
    user's own, as the run's processes get them. Returns a note if the result is unclear (a timeout,
    :func:`longest_s`, or a frozen engine was asked) or the reward was not called; empty if all is
    well. Raises :class:`PreflightError` with what went wrong.
    """
    deadline_s = longest_s()
    if deadline_s is None:
        return ""
    with tempfile.TemporaryDirectory(prefix="astraflow-dry-") as scratch:
        directory = Path(scratch)
        if objects:
            (directory / FILE).write_bytes(objects)
            (directory / FILE).chmod(0o600)
        task = _task(config, prompt)
        (directory / _LOG).touch(0o600)
        ours, theirs = os.pipe()
        try:
            if _may_fork():
                pid = _forked(config, catalog, directory, task, theirs)
            else:
                pid = _started(config, directory, task, theirs, environment or {})
        finally:
            os.close(theirs)
        try:
            with progress("call of workflow and reward"):  # its thread would forbid a fork
                word = _listen(ours, config.run.start_deadline_s, deadline_s + _GRACE_S)
        finally:
            os.close(ours)
            ended = _end(pid)
        return _outcome(word, ended, directory / _LOG, deadline_s)


def _task(config: RunConfig, prompt: Prompt) -> bytes:
    wanted = config.sampling
    sampling = SamplingMessage(
        max_tokens=wanted.max_tokens, temperature=wanted.temperature, stop=list(wanted.stop)
    )
    try:
        return encode(
            Task(
                id="dry-call",
                prompt_id=prompt.id,
                data=prompt.data,
                group_size=1,
                sampling=sampling,
                lease_s=_FAR_S,
                deadline_s=_FAR_S,
            )
        )
    except (TypeError, ValueError) as error:
        raise PreflightError(
            f"prompts: the data of prompt {prompt.id!r} cannot be sent to a RaaS: {error}; a prompt's data may contain "
            "texts, numbers, lists and tables"
        ) from error


def _outcome(word: _Word, ended: int, log: Path, deadline_s: float) -> str:
    match word.state:
        case "passed":
            return word.text
        case "refused":  # the run would fail as well
            raise PreflightError(f"{word.text}\n  No process has been started")
        case "failed":
            raise PreflightError(
                f"{word.text}\n  This was a dry call with a made-up completion; no process has been "
                f"started. Fix it; {LEFT_OUT}"
            )
        case "unsure":
            return f"{word.text} (in a dry call, with a made-up answer of a frozen engine)"
        case "late":
            return _late(word.who, deadline_s, word.text)
    if (
        os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL
    ):  # an error of AstraFlow, or of unknown origin
        return _late(word.who, deadline_s, "")
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    after = f" after printing {lines[-1].strip()!r}" if lines else ""
    how = (
        f"was killed by {signal.Signals(os.WTERMSIG(ended)).name}"
        if os.WIFSIGNALED(ended)
        else f"ended with exit code {os.WEXITSTATUS(ended)}"
    )
    raise PreflightError(
        f"{word.who} ended its process, which {how}{after}\n  This was a dry call in a separate process; no "
        f"process has been started. Fix it; {LEFT_OUT}"
    )


def _late(who: str, deadline_s: float, place: str) -> str:
    where = f", at {place}" if place else ""
    if place and who.startswith((ASYNC, "workflow")):
        where += f", {BLOCKS}"
    return (
        f"the dry call of {who} did not end within {deadline_s:g} s ({VARIABLE}){where}; it is only tested in the "
        "run"
    )


def _may_fork() -> bool:
    """Whether a fork is safe: other threads may hold locks, and a fork cannot use an initialized
    device.
    """
    if sys.platform != "linux" or threading.active_count() > 1:
        return False
    cuda = sys.modules.get("torch.cuda")
    return cuda is None or not cuda.is_initialized()


def _forked(config: RunConfig, catalog: Catalog, directory: Path, task: bytes, writer: int) -> int:
    with warnings.catch_warnings():
        # Python 3.12 counts threads of libraries too; those of linear algebra survive a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal_at_parent_death(signal.SIGKILL)
            said = os.open(directory / _LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for stream in (1, 2):
                os.dup2(said, stream)
            sys.stdout = sys.stderr = open(  # noqa: SIM115 (until the process ends)
                said, "w", buffering=1, errors="backslashreplace"
            )
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            _work(config, catalog, directory, task, writer)
        finally:
            os._exit(1)
    return pid


def _started(
    config: RunConfig, directory: Path, task: bytes, writer: int, environment: Mapping[str, str]
) -> int:
    spec = directory / "spec.json"
    write_spec(spec, _spec(config, directory))
    (directory / _TASK).write_bytes(task)
    argv = [sys.executable, "-m", __name__, str(spec)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        sys.executable,
        argv,
        {**os.environ, **environment, "PYTHONUNBUFFERED": "1"},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, writer, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(directory / _LOG), flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


def _spec(config: RunConfig, directory: Path) -> ChildSpec:
    return ChildSpec(
        config=config.model_dump_json(), directory=str(directory), raas="", parent=os.getpid()
    )


def _listen(reader: int, start_s: float, seconds: float) -> _Word:
    """The last message before a verdict, the exit of the process, or ``seconds`` after its first
    message, which comes within ``start_s``.
    """
    word, rest, until = _Word(), b"", time.monotonic() + start_s
    while word.state == "at" and (left := until - time.monotonic()) > 0:
        if not select.select([reader], [], [], left)[0]:
            break
        data = os.read(reader, _READ_BYTES)
        if not data:
            break
        if not word.text:
            until = time.monotonic() + seconds
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            said = json.loads(line)
            who = said["text"] if said["state"] == "at" else word.who
            word = _Word(said["state"], said["text"], who)
    return word


def _end(pid: int) -> int:
    """The wait status of the process, after it and its descendants were killed. A process that has
    closed its pipe exits on its own.
    """
    until = time.monotonic() + _GRACE_S / 10
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() < until:
        time.sleep(0.002)
        ended, status = os.waitpid(pid, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    return status if ended else os.waitpid(pid, 0)[1]


def _work(
    config: RunConfig, catalog: Catalog | None, directory: Path, task: bytes, writer: int
) -> NoReturn:
    """The main function of the process."""
    from astraflow_runtime.raas.episodes.dry_call import DryCallFailed, perform

    def say(state: str, text: str) -> None:
        os.write(writer, json.dumps({"state": state, "text": text}).encode() + b"\n")

    def late() -> None:
        say("late", _standing())
        os._exit(0)

    watch = threading.Timer(longest_s() or LONGEST_S, late)
    watch.daemon = True
    watch.start()
    at = _Told(say)
    try:
        catalog = catalog or catalog_of_run(config, directory)
        said = ("passed", perform(config, catalog, directory, task, at))
    except DryCallFailed as failed:
        said = (failed.state, str(failed))
    except SystemExit as error:
        said = (
            "failed",
            f"{at.who} tried to exit its process: {describe(error)}; raise an error instead",
        )
    except AstraFlowError as error:
        said = ("refused", str(error))
    except BaseException as error:  # noqa: BLE001 (whatever it is, the launcher says it)
        state = "refused" if isinstance(error, ImportError) else "failed"
        said = (state, f"{at.who} raised {describe(error)}")
    say(*said)
    os._exit(0)


class _Told:
    """Reports which code is called next, and remembers it."""

    def __init__(self, say: Any) -> None:
        self._say, self.who = say, ""

    def __call__(self, who: str) -> None:
        self.who = who
        self._say("at", who)


def _standing() -> str:
    """Where the main thread is; empty if it waits for the event loop."""
    main = threading.main_thread().ident
    frame = sys._current_frames().get(main) if main is not None else None
    frames: list[StackFrame] = []
    while frame is not None:
        frames.insert(0, StackFrame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    waits = not frames or Path(frames[-1].file).name == "selectors.py"
    return "" if waits else place_of(frames)


def main() -> NoReturn:
    """The process's entry point, where it is not a fork."""
    spec = read_spec(Path(sys.argv[1]))
    end_with(spec.parent, cleans_up=False)
    directory = Path(spec.directory)
    writer = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _work(spec.run_config, None, directory, (directory / _TASK).read_bytes(), writer)


if __name__ == "__main__":
    main()
