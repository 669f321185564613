"""The run that is replayed, and the directory and configurations of its replay."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from astraflow_core.catalog import Catalog
from astraflow_core.config.models import RunConfig
from astraflow_core.config.sources import parse_value
from astraflow_core.errors import AstraFlowError, RunFailed, UserError
from astraflow_core.installed.provenance import module_folders, read_plugins
from astraflow_core.suggestions import did_you_mean
from astraflow_runtime.cli.run_directory import read_config
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.dataflow.journal.entries import Acknowledged
from astraflow_runtime.dataflow.journal_reader import JournalReader
from astraflow_runtime.launch.planning.plan import check_interpreters
from astraflow_runtime.launch.planning.plugins_file import write_plugins
from astraflow_runtime.launch.planning.prepare import described_plugins
from astraflow_runtime.launch.planning.user_objects import inherited_path, python_path
from astraflow_runtime.models.folders import bring_back, check_models
from astraflow_runtime.models.resolver import ModelResolver

FOLDER = "replays"
"""Where the replays of a run lie in its directory."""
_PLUGINS = "plugins.json"


@dataclass(frozen=True)
class ReplayChanges:
    """What the replay does otherwise than the run. ``policies``: those that train again, all if empty. ``trainer`` and
    ``algorithm``: texts ``"KEY=VALUE"``; with ``use=NAME`` the keys of the run are left out. ``data``: names of data
    policies with commas between them, or a TOML array of their tables; ``None``: the batches as they were."""

    policies: tuple[str, ...] = ()
    trainer: tuple[str, ...] = ()
    algorithm: tuple[str, ...] = ()
    data: str | None = None
    last: tuple[tuple[str, int], ...] = ()
    """Options that name an update, each with its number."""


@dataclass(frozen=True)
class RecordedRun:
    """A run, and its replay in ``directory``. ``config`` is the dataflow's, ``trainers`` that of the trainers, which lies in
    ``directory`` as ``config.toml``; ``policies`` train again. ``environment``: of the trainers. ``notes``: what a person
    should know."""

    run: Path
    directory: Path
    reader: JournalReader
    config: RunConfig
    trainers: RunConfig
    catalog: Catalog
    policies: tuple[str, ...]
    redecides: bool
    environment: dict[str, str]
    notes: tuple[str, ...]


def open_run(run: Path, directory: Path | None, changes: ReplayChanges) -> RecordedRun:
    """Lay out the replay of ``run`` in ``directory``, by default a new one in ``RUN/replays``. :class:`UserError` if the run
    has no journal, the directory is not empty, or a change does not fit."""
    raw = read_config(run)
    reader = JournalReader.of_run(run)
    policies = _chosen(raw, changes.policies)
    _check_updates(reader, policies, changes)
    data = None if changes.data is None else _data_policies(changes.data)
    resolver_of = load_config(run / "config.toml", workflow_given=True)
    bring_back(resolver_of.config, run, ModelResolver(resolver_of.catalog))
    _check_changes(_for_trainers(_for_dataflow(raw, policies, data), policies, changes), changes)
    directory = _new_directory(run, directory)
    if (run / _PLUGINS).exists():
        shutil.copyfile(run / _PLUGINS, directory / _PLUGINS)
    for_dataflow = _for_dataflow(raw, policies, data)
    for_trainers = _for_trainers(for_dataflow, policies, changes)
    config = load_config(
        _written(directory / "dataflow.toml", for_dataflow), workflow_given=True
    ).config
    loaded = load_config(_written(directory / "config.toml", for_trainers), workflow_given=True)
    check_interpreters(loaded.config)
    check_models(loaded.config)
    before = read_plugins(run)
    plugins = described_plugins(loaded)
    write_plugins(directory, plugins)
    return RecordedRun(
        run=run,
        directory=directory,
        reader=reader,
        config=config,
        trainers=loaded.config,
        catalog=loaded.catalog,
        policies=policies,
        redecides=data is not None,
        environment=python_path(inherited_path(), module_folders(plugins)),
        notes=tuple(_other_versions(before, plugins)),
    )


def _chosen(raw: Mapping[str, Any], given: Sequence[str]) -> tuple[str, ...]:
    known = tuple(raw.get("policies", {}))
    for name in given:
        if name not in known:
            raise UserError(
                f"--policy {name!r}: the run has no such policy{did_you_mean(name, known)} "
                f"(policies: {', '.join(known)})"
            )
    return tuple(dict.fromkeys(given)) or known


def _check_updates(reader: JournalReader, policies: Sequence[str], changes: ReplayChanges) -> None:
    """Refuse a journal that is damaged, and updates that it does not have. With other data policies there may be more."""
    made: dict[str, set[str]] = {policy: set() for policy in policies}
    try:
        for _, entry in reader.entries():
            if isinstance(entry, Acknowledged) and entry.message.policy in made:
                made[entry.message.policy].add(entry.message.batch)
    except RunFailed as error:
        raise UserError(str(error)) from error
    most = max(map(len, made.values()), default=0)
    for option, number in changes.last:
        if number > most and changes.data is None:
            raise UserError(f"{option} {number}: the run has recorded {most} updates")


def _check_changes(raw: Mapping[str, Any], changes: ReplayChanges) -> None:
    """Refuse what components refuse, before there is a directory; the error names the options."""
    options = [f"--trainer {each}" for each in changes.trainer]
    options += [f"--algorithm {each}" for each in changes.algorithm]
    options += [] if changes.data is None else [f"--data {changes.data}"]
    if not options:
        return
    with tempfile.TemporaryDirectory() as folder:
        file = _written(Path(folder, "config.toml"), raw)
        try:
            load_config(file, workflow_given=True)
        except AstraFlowError as error:
            said = str(error).replace(str(file), "the changed configuration")
            raise UserError(f"{', '.join(options)}: {said}") from error


def _data_policies(text: str) -> list[dict[str, Any]]:
    value = parse_value(text) if text.lstrip().startswith("[") else None
    if value is None:
        return [{"use": name.strip()} for name in text.split(",") if name.strip()]
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise UserError(
            f"--data {text!r}: expected names such as dynamic_sampling,staleness or a TOML array such as "
            "[{ use = 'dynamic_sampling' }]"
        )
    return value


def _changed(table: Mapping[str, Any], given: Sequence[str], option: str) -> dict[str, Any]:
    """A component's table with ``given`` keys; with another component, only those."""
    keys: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            raise UserError(f"{option} {text!r}: expected KEY=VALUE, such as lr=1e-5")
        keys[key.strip()] = parse_value(value.strip())
    other = "use" in keys and keys["use"] != table.get("use")
    return keys if other else {**table, **keys}


def _for_dataflow(
    raw: Mapping[str, Any], policies: Sequence[str], data: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """The run's table without its rollout store, which is the run's own. With other data policies nothing is evaluated,
    and no prompt is refused but those that the record says."""
    changed = {**raw, "rollouts": {"groups_per_step": 0}}
    if data is None:
        return changed
    tables = {
        name: {**table, "data": data if name in policies else table.get("data", [])}
        for name, table in raw["policies"].items()
    }
    prompts = {key: value for key, value in raw["prompts"].items() if key != "data"}
    return {**changed, "policies": tables, "prompts": prompts, "eval": {}}


def _for_trainers(
    raw: Mapping[str, Any], policies: Sequence[str], changes: ReplayChanges
) -> dict[str, Any]:
    """The same with changed trainers, which publish over loopback only, and save no checkpoints on the way."""
    tables = dict(raw["policies"])
    for name in policies:
        table = tables[name]
        tables[name] = {
            **table,
            "trainer": _changed(table["trainer"], changes.trainer, "--trainer"),
            "algorithm": _changed(table["algorithm"], changes.algorithm, "--algorithm"),
        }
    for name, table in tables.items():
        tables[name] = {**table, "transport": {"use": "http"}}
    run = {**raw["run"], "name": f"{raw['run']['name']}-replay"}
    return {**raw, "run": run, "policies": tables, "checkpoint": {"every": 0}}


def _written(path: Path, raw: Mapping[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(raw), encoding="utf-8")
    return path


def _new_directory(run: Path, given: Path | None) -> Path:
    """An empty directory."""
    directory = given or run / FOLDER / time.strftime("%Y%m%d-%H%M%S")
    number = 1
    while given is None and directory.exists():
        number += 1
        directory = run / FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{number}"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UserError(f"--directory {directory} is not empty; name a new one")
    except OSError as error:
        raise UserError(
            f"{directory} cannot be made ({error.strerror}); name another with --directory"
        ) from error
    return directory


def _other_versions(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> list[str]:
    versions = {entry["distribution"]: entry["version"] for entry in before}
    return [
        f"the run had {name} {versions[name]}, and the replay has {entry['version']}"
        for entry in now
        if (name := entry["distribution"])
        and name in versions
        and versions[name] != entry["version"]
    ]
