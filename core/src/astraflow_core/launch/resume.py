"""``astraflow run --resume DIRECTORY``: what a run needs to go on where it ended."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from astraflow_core.config.load import load_config
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import UserError
from astraflow_core.hooks import Hooks
from astraflow_core.launch.metrics import read_metrics
from astraflow_core.launch.plan import check_interpreters
from astraflow_core.launch.prepare import Prepared, described_plugins
from astraflow_core.launch.user_objects import import_path
from astraflow_core.model_folders import resolve_models
from astraflow_core.provenance import read_plugins, write_plugins
from astraflow_core.raas.user_objects import FILE
from astraflow_core.trainer.checkpoints import Checkpoints

LEFT_BEHIND = ("dataflow.json", "status.json", "summary.json")
"""What tells of processes that are gone."""


def resume(directory: str | Path) -> Prepared:
    """Load and check the run of a directory; a :class:`UserError` says why it cannot go on. Nothing has
    been started or written then."""
    folder = Path(directory).expanduser().absolute()
    if not (folder / "config.toml").is_file() or not (folder / "token").is_file():
        raise UserError(
            f"{str(folder)!r} is no run directory: it has no config.toml with its token; name one that "
            "`astraflow run` has made"
        )
    objects_given = (folder / FILE).exists()
    loaded = load_config(folder / "config.toml", workflow_given=objects_given)
    config = loaded.config
    _check_state(folder, config)
    check_interpreters(config)
    hooks = Hooks.for_run(loaded.catalog, config)
    config = resolve_models(config, hooks)
    plugins = described_plugins(loaded)
    return Prepared(
        config,
        loaded.catalog,
        hooks,
        folder,
        (folder / "token").read_text(encoding="utf-8"),
        plugins,
        {"PYTHONPATH": import_path()} if objects_given else {},
        resumed=True,
        notes=_changes(read_plugins(folder), plugins),
    )


def can_resume(config: RunConfig, directory: Path) -> bool:
    """Whether a run that ended early left what it takes to go on."""
    return config.journal.enabled and not _without_checkpoint(directory, config)


def _check_state(folder: Path, config: RunConfig) -> None:
    if not config.journal.enabled:
        raise UserError(
            f"the run in {str(folder)!r} kept no journal ([journal] enabled = false), so that nobody knows "
            "where it was"
        )
    summary = folder / "summary.json"
    if summary.exists() and json.loads(summary.read_text(encoding="utf-8"))["state"] == "finished":
        raise UserError(f"the run in {str(folder)!r} has finished: nothing is left to do")
    for policy, updates in _without_checkpoint(folder, config).items():
        raise UserError(
            f"the trainer of {policy!r} had made {updates} updates and has left no checkpoint; a run that "
            "shall survive its end needs [checkpoint] every, or to be stopped with one Ctrl-C"
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
        f"{name}: the run began with {versions[name]}, {entry['version']} is installed now"
        for entry in now
        if (name := entry["distribution"])
        and versions.get(name, entry["version"]) != entry["version"]
    )


def begin_again(prepared: Prepared) -> None:
    """Remove what tells of processes that are gone; from here on the run has the plugins of now."""
    for name in LEFT_BEHIND:
        (prepared.directory / name).unlink(missing_ok=True)
    write_plugins(prepared.directory, prepared.plugins)


def claim(directory: Path) -> int:
    """Lock a run directory for this launcher; closing what is returned lets go of it."""
    from astraflow_core.file_lock import lock

    handle = os.open(directory / "launcher.lock", os.O_RDWR | os.O_CREAT, 0o600)
    if not lock(handle):
        os.close(handle)
        raise UserError(
            f"a launcher is at work on the run in {str(directory)!r} already; look into the run with "
            f"`astraflow status --run {directory}`, or stop that launcher first (Ctrl-C where it runs)"
        )
    return handle
