"""``astraflow run --resume DIRECTORY``: what a run needs to continue where it ended."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astraflow_core.config.models import RunConfig
from astraflow_core.errors import UserError
from astraflow_core.installed.provenance import module_folders, read_plugins
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.config.transport_security import check_tls
from astraflow_runtime.dataflow.journal_reader import FOLDER, JournalReader
from astraflow_runtime.hooks import Hooks
from astraflow_runtime.launch.planning.leftovers import clear_leftovers
from astraflow_runtime.launch.planning.plan import check_interpreters, check_trackers
from astraflow_runtime.launch.planning.plugins_file import write_plugins
from astraflow_runtime.launch.planning.prepare import (
    Prepared,
    check_code,
    described_plugins,
    first_prompt,
)
from astraflow_runtime.launch.planning.user_objects import import_path, inherited_path, python_path
from astraflow_runtime.launch.results.live_curves import wants_curves
from astraflow_runtime.launch.results.metrics import FILE as METRICS
from astraflow_runtime.launch.results.metrics import read_metrics
from astraflow_runtime.models.folders import bring_back, check_models, resolve_models
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_runtime.raas.user_objects import FILE, read_own
from astraflow_runtime.trainer.checkpoints.store import Checkpoints
from astraflow_wire.host.disk import replace_file, when_room
from astraflow_wire.http.auth import is_token, new_token

LEFT_BEHIND = ("dataflow.json", "status.json", "summary.json")
"""Files that belong to processes of an earlier start."""


def resume(directory: str | Path) -> Prepared:
    """Load and check the run of a directory; a :class:`UserError` says why it cannot continue. No process
    has been started or written then."""
    wants_curves()
    folder = Path(directory).expanduser().absolute()
    if not (folder / "config.toml").is_file() or not (folder / "token").is_file():
        raise UserError(
            f"{str(folder)!r} is not a run directory: it has no config.toml with its token; name a directory "
            "that `astraflow run` created"
        )
    objects_given = (folder / FILE).exists()
    loaded = load_config(folder / "config.toml", workflow_given=objects_given)
    config = loaded.config
    _check_state(folder, config)
    check_interpreters(config)
    check_tls(config)
    check_trackers(loaded)
    hooks = Hooks.for_run(loaded.catalog, config)
    resolver = ModelResolver(loaded.catalog)
    bring_back(config, folder, resolver)
    config = resolve_models(config, resolver)
    check_models(config)
    plugins = described_plugins(loaded)
    before = import_path() if objects_given else inherited_path()
    environment = python_path(before, module_folders(plugins))
    objects = read_own(folder / FILE) if objects_given else b""
    prompt = first_prompt(loaded.catalog, config)
    note = check_code(loaded.catalog, config, prompt, objects, environment)
    token = (folder / "token").read_bytes().decode(errors="replace").strip()
    damaged = (
        ""
        if is_token(token)
        else f"{folder / 'token'} was damaged and has been replaced with a new token"
    )
    return Prepared(
        config,
        loaded.catalog,
        hooks,
        folder,
        new_token() if damaged else token,
        plugins,
        environment,
        resumed=True,
        notes=(*_changes(read_plugins(folder), plugins), *filter(None, [damaged, note])),
    )


def can_resume(config: RunConfig, directory: Path) -> bool:
    """Whether a run that ended early left what it takes to continue."""
    return config.journal.enabled and not _without_checkpoint(directory, config)


def _check_state(folder: Path, config: RunConfig) -> None:
    if not config.journal.enabled:
        raise UserError(
            f"the run in {str(folder)!r} kept no journal ([journal] enabled = false), so it cannot be resumed: "
            "start a new run"
        )
    if (summary_of(folder) or {}).get("state") == "finished":
        raise UserError(f"the run in {str(folder)!r} has already finished")
    _check_journal(folder)
    for policy, updates in _without_checkpoint(folder, config).items():
        raise UserError(
            f"the trainer of {policy!r} made {updates} updates but saved no checkpoint; to resume a run, "
            "set [checkpoint] every, or stop it with a single Ctrl-C"
        )


def summary_of(folder: Path) -> dict[str, Any] | None:
    """The contents of ``summary.json`` of a run directory; ``None`` if there is none, or none that can be read."""
    try:
        content = json.loads((folder / "summary.json").read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _check_journal(folder: Path) -> None:
    """Without its journal a run that has made steps would start over and write over what they left."""
    entries = JournalReader(folder / FOLDER).log
    if entries.is_file() and entries.stat().st_size:
        return
    made = [
        path
        for path in (folder / METRICS, *sorted(folder.glob("checkpoints/*/update-*")))
        if path.is_dir() or (path.is_file() and path.stat().st_size)
    ]
    if made:
        raise UserError(
            f"the journal of the run in {str(folder)!r} is missing: {entries} is missing or empty, but {made[-1]} "
            f"contains completed steps. Restore the folder {str(entries.parent)!r}, or start a new run with "
            "`astraflow run`"
        )


def _without_checkpoint(folder: Path, config: RunConfig) -> dict[str, int]:
    """Policy → updates of trainers whose work is lost. With ``checkpoint.every`` the batches since the last
    checkpoint are kept, and those since the start before there is one."""
    if config.checkpoint.every:
        return {}
    made = Counter(step.policy for step in read_metrics(folder).steps)
    return {
        policy: made[policy]
        for policy in config.policies
        if made[policy]
        and not Checkpoints(
            folder / "checkpoints" / policy, policy, keep=config.checkpoint.keep
        ).saved()
    }


def _changes(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> tuple[str, ...]:
    """What was installed in another version when the run began."""
    versions = {entry["distribution"]: entry["version"] for entry in before}
    return tuple(
        f"{name}: the run started with {versions[name]}, but {entry['version']} is installed now"
        for entry in now
        if (name := entry["distribution"])
        and versions.get(name, entry["version"]) != entry["version"]
    )


def begin_again(prepared: Prepared) -> dict[str, Any] | None:
    """Remove what processes that are gone have left; from here on the run has the plugins of now. Returns the
    summary that was among it."""
    before = summary_of(prepared.directory)
    for name in LEFT_BEHIND:
        (prepared.directory / name).unlink(missing_ok=True)
    clear_leftovers(prepared.directory)
    when_room(lambda: write_plugins(prepared.directory, prepared.plugins), prepared.directory)
    token = prepared.directory / "token"
    when_room(lambda: replace_file(token, prepared.token, 0o600), token)
    return before


def claim(directory: Path) -> int:
    """Lock a run directory for this launcher; closing what is returned lets go of it."""
    from astraflow_runtime.file_lock import lock

    file = directory / "launcher.lock"
    handle = when_room(lambda: os.open(file, os.O_RDWR | os.O_CREAT, 0o600), file)
    if not lock(handle):
        os.close(handle)
        raise UserError(
            f"a launcher is already running for the run in {str(directory)!r} ; inspect the run with "
            f"`astraflow status --run {directory}`, or stop that launcher first (Ctrl-C in its terminal)"
        )
    return handle
