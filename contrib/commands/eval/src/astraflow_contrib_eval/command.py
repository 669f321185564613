"""``astraflow eval MODEL_OR_RUN``: avg@k and pass@k on evaluation sets."""

from __future__ import annotations

import argparse
import math
import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import RunFailed, UserError
from astraflow_runtime.cli.helping import teach

if TYPE_CHECKING:
    from astraflow_contrib_eval.subject import Options
    from astraflow_contrib_eval.versions import WantedVersion

_AT = re.compile(r"(?P<run>.+)@(?P<version>\d+|best)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Plays the evaluation sets of a run with a version of it, or with any model under the configuration of a "
        "file: workflow, reward and sampling as its own evaluations have them. Ctrl-C stops it and reports the "
        "finished episodes."
    )
    what = parser.add_argument_group("subject")
    what.add_argument(
        "subject",
        metavar="MODEL_OR_RUN",
        nargs="?",
        help="a run by path or by its name in runs/ (default: the newest), or a model as [policies.NAME] model names one; "
        "RUN@N and RUN@best are short for --version",
    )
    # Named so that `module:attr` of the file are found where the command is called.
    what.add_argument(
        "--config",
        dest="file",
        metavar="FILE",
        help="a run's TOML file: configuration for the evaluation; for a run, replaces the run's own",
    )
    which = what.add_mutually_exclusive_group()
    which.add_argument(
        "--version",
        dest="wanted",
        metavar="N",
        type=_version,
        help="version of the run, or best: that of its best evaluation; default: the newest",
    )
    which.add_argument(
        "--step", metavar="N", type=_count, help="the checkpoint that it saved after update N"
    )
    what.add_argument("--policy", metavar="NAME", help="replace the model of this policy only")
    how = parser.add_argument_group("evaluation")
    how.add_argument(
        "--set",
        dest="sets",
        metavar="NAME",
        action="append",
        default=[],
        help="a set of [eval.sets]; may be repeated; default: all of them",
    )
    how.add_argument("--limit", metavar="N", type=_count, help="the first N prompts of each set")
    how.add_argument(
        "-k",
        dest="samples",
        metavar="N",
        type=_count,
        help="samples per prompt; default: the config's",
    )
    how.add_argument(
        "--temperature", metavar="T", type=_temperature, help="0 is greedy; default: the config's"
    )
    how.add_argument("--engine", metavar="NAME", help="use this engine for all policies")
    how.add_argument(
        "--engine-key",
        dest="engine_keys",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="a key of that engine; may be repeated",
    )
    how.add_argument(
        "--override",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="override a key of the configuration, as --set of `astraflow run` does; may be repeated",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--json", metavar="FILE", help="write all figures as JSON; - prints them")
    output.add_argument(
        "--rollouts", metavar="FILE", type=Path, help="write a line of JSON for each episode"
    )
    output.add_argument(
        "--tokens", action="store_true", help="with token ids and log-probs in the rollouts"
    )
    output.add_argument(
        "--compare",
        metavar="OTHER",
        help="a model, a RUN@N, or a file that --json wrote: differences prompt by prompt",
    )
    parser.set_defaults(command=run)
    teach(
        parser,
        "evaluate.md",
        "eval runs/quickstart-20260102-030405 -k 8 --temperature 1",
        "eval quickstart-20260102-030405@best --compare quickstart-20260102-030405@0",
        "eval models/mine --config run.toml --set held_out --limit 100 --json figures.json",
    )


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, print and write; 130 after Ctrl-C, 1 if it ended early for another reason. :class:`RunFailed` if no prompt
    of a set gave a result."""
    from astraflow_contrib_eval import report
    from astraflow_contrib_eval.figures import compared
    from astraflow_contrib_eval.rollouts import RolloutFile
    from astraflow_contrib_eval.session import eval_session, named, read_document
    from astraflow_runtime.cli.output import print_json

    if arguments.tokens and arguments.rollouts is None:
        raise UserError("--tokens: they are written to the file of rollouts; give --rollouts FILE")
    options, chosen = _options(arguments), tuple(arguments.sets)
    given, wanted = _subject(arguments)
    other = arguments.compare
    if arguments.json not in (None, "-"):
        _check_writable(Path(arguments.json))
    with ExitStack() as stack:
        one = stack.enter_context(eval_session(given, wanted, options, chosen, arguments.limit))
        theirs = another = None
        if other is not None and Path(other).is_file():
            theirs = read_document(Path(other), one.sets)
        elif other is not None:
            name, version = _at(other)
            session = eval_session(name, version, options, tuple(one.sets), arguments.limit)
            with named("--compare"):
                another = stack.enter_context(session)
        file = None
        if arguments.rollouts is not None:
            file = stack.enter_context(RolloutFile(arguments.rollouts, arguments.tokens))
        mine, signalled = one.play(file)
        if another is not None and not mine["partial"]:
            theirs, signalled = another.play(None)
    if theirs is not None and not mine["partial"]:
        mine["comparison"] = compared(mine, theirs)
    if arguments.json == "-":
        print_json(mine)
    else:
        report.print_figures(mine)
        if "comparison" in mine:
            report.print_comparison(mine)
    if arguments.json not in (None, "-"):
        _write(Path(arguments.json), mine)
    if signalled:
        return 128 + signalled
    for document in (mine, theirs or {}) if another is not None else (mine,):
        _check_played(document)
    return 1 if mine["partial"] else 0


def _check_played(document: Mapping[str, Any]) -> None:
    """Figures without a single prompt are none."""
    for name, figures in document.get("sets", {}).items():
        if figures["failed"] and not figures["n"]:
            raise RunFailed(
                f"no prompt of set {name!r} could be evaluated with {document['model']}: all {figures['failed']} failed; at "
                f"last: {figures['episodes']['last_error']}"
            )


def _options(arguments: argparse.Namespace) -> Options:
    from astraflow_contrib_eval.subject import Options

    overrides = list(arguments.overrides)
    if arguments.samples is not None:
        overrides.append(f"eval.samples={arguments.samples}")
    if arguments.temperature is not None:
        overrides.append(f"eval.temperature={arguments.temperature}")
    return Options(
        arguments.file,
        tuple(overrides),
        arguments.engine,
        tuple(arguments.engine_keys),
        arguments.policy,
    )


def _subject(arguments: argparse.Namespace) -> tuple[str | None, WantedVersion]:
    from astraflow_contrib_eval.versions import WantedVersion

    given, wanted = arguments.subject, arguments.wanted
    if given is not None:
        given, at = _at(given)
        if at != WantedVersion():
            if wanted is not None or arguments.step is not None:
                raise UserError(f"{arguments.subject!r} names a version, and so does an option")
            return given, at
    if arguments.step is not None:
        return given, WantedVersion(update=arguments.step)
    return given, _wanted(wanted)


def _at(text: str) -> tuple[str, WantedVersion]:
    """A run and its version; an existing path is taken as it is."""
    match = None if Path(text).exists() else _AT.fullmatch(text)
    if match is None:
        return text, _wanted(None)
    return match["run"], _wanted(_version(match["version"]))


def _wanted(version: int | str | None) -> WantedVersion:
    from astraflow_contrib_eval.versions import WantedVersion

    return WantedVersion(best=True) if isinstance(version, str) else WantedVersion(version)


def _check_writable(path: Path) -> None:
    """Refuse a file that could not be written when everything has been played."""
    folder = path.parent
    problem = ""
    if path.is_dir():
        problem = "it is a folder"
    elif not folder.is_dir():
        problem = f"there is no folder {str(folder)!r}; make it"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = f"{str(folder)!r} is not writable"
    if problem:
        raise UserError(f"--json {path}: it cannot be written: {problem}, or name another file")


def _write(path: Path, document: dict[str, Any]) -> None:
    import json

    from astraflow_wire.host.disk import replace_file

    try:
        replace_file(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(f"--json {path}: it cannot be written: {error.strerror}") from error


def _version(text: str) -> int | str:
    return text if text == "best" else _count(text, least=0)


def _count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least {least}")
    return int(text)


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of at least 0")
    return value
