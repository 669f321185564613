"""One evaluation from its name to its figures."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from astraflow_contrib_eval.evaluation import SetEpisodes, evaluate
from astraflow_contrib_eval.figures import SCHEMA, document
from astraflow_contrib_eval.player import NAME, EvaluatedEpisode
from astraflow_contrib_eval.report import EvaluationProgress
from astraflow_contrib_eval.rollouts import RolloutFile
from astraflow_contrib_eval.subject import EvaluationSubject, Options, find_subject
from astraflow_contrib_eval.versions import WantedVersion
from astraflow_core.errors import AstraFlowError, RunFailed, UserError
from astraflow_core.suggestions import did_you_mean
from astraflow_runtime.cli.output import print_line
from astraflow_runtime.dataflow.tasks.evaluation_tasks import build_evaluation_set
from astraflow_runtime.launch.planning.prepare import check_code
from astraflow_runtime.raas.user_objects import FILE, read_own
from astraflow_runtime.telemetry.logs import configure_logging
from astraflow_runtime.telemetry.redirecting import said_to
from astraflow_wire.host.private_folder import PrivateFolder, remove_orphans

_PREFIX = "astraflow-eval-"
_LAST_LINES = 12


class EvalSession:
    """An evaluation of ``subject`` on ``sets``, in its own folder."""

    def __init__(
        self, folder: Path, subject: EvaluationSubject, sets: dict[str, SetEpisodes]
    ) -> None:
        self._folder, self._subject, self.sets = folder, subject, sets

    def play(self, rollouts: RolloutFile | None) -> tuple[dict[str, Any], int]:
        """Its document, and the signal that ended it early, if one did. What its processes say is shown if it fails."""
        log, subject, sets = self._folder / "said.log", self._subject, self.sets
        try:
            with said_to(log) as terminal:
                configure_logging(NAME)
                _check(subject, sets)
                if subject.note:
                    print_line(subject.note, terminal.err)
                progress = EvaluationProgress(terminal.err, sets, subject.label)

                def told(episodes: SetEpisodes, episode: EvaluatedEpisode) -> None:
                    if rollouts is not None:
                        rollouts.write(episode)
                    progress.look()

                progress.starting()
                result = evaluate(subject, sets, told, progress.began)
                progress.end()
        except UserError:
            raise
        except AstraFlowError as error:
            said = log.read_text(errors="replace").splitlines() if log.exists() else []
            lines = "".join(f"\n  {line}" for line in said[-_LAST_LINES:])
            raise RunFailed(f"{error}{lines and '; last lines:'}{lines}") from error
        return document(result), result.interrupted


@contextmanager
def eval_session(
    given: str | None,
    wanted: WantedVersion,
    options: Options,
    chosen: Sequence[str],
    limit: int | None,
) -> Iterator[EvalSession]:
    """An evaluation on the sets ``chosen`` (all for none), once everything that was asked for has been found. Its folder is
    removed on leaving."""
    parent = Path(tempfile.gettempdir())
    remove_orphans(parent, _PREFIX)
    with closing(PrivateFolder(parent, _PREFIX)) as folder:
        subject = find_subject(given, wanted, options, folder.path)
        yield EvalSession(folder.path, subject, _sets(subject, chosen, limit))


@contextmanager
def named(option: str) -> Iterator[None]:
    """Usage errors are reported as those of ``option``."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{option}: {error}") from error


def _sets(
    subject: EvaluationSubject, chosen: Sequence[str], limit: int | None
) -> dict[str, SetEpisodes]:
    config = subject.config
    there = config.eval.sets
    if not there:
        raise UserError(
            "there is nothing to evaluate on: the configuration has no [eval.sets]; name prompts with --override "
            "'eval.sets.NAME={use = \"SOURCE\", …}'"
        )
    for name in chosen:
        if name not in there:
            raise UserError(
                f"--set {name}: the evaluation sets are {', '.join(there)}{did_you_mean(name, there)}"
            )
    sets = {}
    for name in chosen or there:
        source = build_evaluation_set(config, subject.directory, "", subject.catalog, name)
        count = min(len(source), limit or len(source))
        sets[name] = SetEpisodes(name, source, count, config.eval.samples)
    return sets


def _check(subject: EvaluationSubject, sets: dict[str, SetEpisodes]) -> None:
    """Workflow and reward are called once before an engine starts."""
    objects = subject.directory / FILE
    given = read_own(objects) if objects.exists() else b""
    first = next(iter(sets.values())).source[0]
    note = check_code(subject.catalog, subject.config, first, given, subject.environment)
    if note:
        sys.stderr.write(f"{note}\n")


def read_document(path: Path, sets: Iterable[str]) -> dict[str, Any]:
    """What ``--json`` wrote; :class:`UserError` if it is something else, or lacks one of the ``sets``."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"--compare {path}: it cannot be read as JSON: {error}") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise UserError(
            f"--compare {path}: it is not what `astraflow eval --json FILE` of this version writes"
        )
    if missing := [name for name in sets if name not in found["sets"]]:
        raise UserError(
            f"--compare {path}: it has no set {missing[0]!r}, but {', '.join(found['sets']) or 'none'}; name what both "
            "have with --set NAME"
        )
    return found
