"""Everything that can be known to be wrong before a process starts, and the directory of the run."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.auto_transport import as_comments
from astraflow_core.config.load import LoadedConfig, component_context, dump_toml, load_config
from astraflow_core.config.models import ComponentTable, RunConfig
from astraflow_core.errors import AstraFlowError, PreflightError, PromptError, UserError
from astraflow_core.hooks import Hooks
from astraflow_core.launch.plan import check_interpreters
from astraflow_core.launch.user_objects import (
    checked_objects,
    import_path,
    pickled,
    write_private,
)
from astraflow_core.model_folders import resolve_models
from astraflow_core.provenance import write_plugins
from astraflow_core.raas.user_objects import FILE
from astraflow_core.wire.auth import new_token


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that may start, or (``resumed``) start again: ``config`` with every model a local folder, in its
    own ``directory``. ``plugins``: what provides the components, as in ``plugins.json``. ``notes``: what a
    person should know."""

    config: RunConfig
    catalog: Catalog
    hooks: Hooks
    directory: Path
    token: str
    plugins: list[dict[str, Any]]
    environment: dict[str, str]
    resumed: bool = False
    notes: tuple[str, ...] = ()


def prepare(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    workflow: Any = None,
    reward: Any = None,
) -> Prepared:
    """Load, check and lay out a run. Every mistake of the user is a :class:`UserError` from here, and
    nothing has been started or written then."""
    objects = checked_objects(workflow, reward)
    frozen = pickled(objects)
    loaded = load_config(source, overrides, workflow_given="workflow" in objects)
    config = loaded.config
    check_interpreters(config)
    hooks = Hooks.for_run(loaded.catalog, config)
    config = resolve_models(config, hooks)
    _check_context(config)
    _check_loans(loaded, config)
    _check_data_and_code(loaded.catalog, config, objects)
    plugins = described_plugins(loaded)
    token = new_token()
    directory = _new_directory(config)
    (directory / "config.toml").write_text(as_comments(loaded.notes) + dump_toml(config))
    write_plugins(directory, plugins)
    write_private(directory / "token", token.encode())
    environment = {}
    if objects:
        write_private(directory / FILE, frozen)
        environment["PYTHONPATH"] = import_path()
    return Prepared(
        config,
        loaded.catalog,
        hooks,
        directory,
        token,
        plugins,
        environment,
        notes=loaded.notes,
    )


def _check_context(config: RunConfig) -> None:
    """Refuse a ``max_tokens`` that leaves no room for a prompt; longer prompts show when they come."""
    for name, policy in config.policies.items():
        described = json.loads((Path(policy.model) / "config.json").read_text())
        context = described.get("max_position_embeddings")
        if isinstance(context, int) and config.sampling.max_tokens >= context:
            raise PreflightError(
                f"sampling.max_tokens: {config.sampling.max_tokens} leaves no room for a prompt in the "
                f"context of policy {name!r}, {context} tokens; lower it"
            )


def _check_loans(loaded: LoadedConfig, config: RunConfig) -> None:
    """Refuse to train a policy on token ids of one that has another tokenizer."""
    for path, (selected, keys) in loaded.components.items():
        if "borrow" not in selected.component.capabilities:
            continue
        names = (path.split(".")[1], getattr(keys, "source", ""))
        files = [Path(config.policies[name].model) / "tokenizer.json" for name in names]
        if all(file.exists() for file in files) and files[0].read_bytes() != files[1].read_bytes():
            raise PreflightError(
                f"{path}: {names[0]!r} cannot be trained on sequences of {names[1]!r}: their tokenizers differ "
                f"({files[0]}, {files[1]}), so the same ids are other texts; policies that share rows need models "
                "with one tokenizer"
            )


def _check_data_and_code(catalog: Catalog, config: RunConfig, objects: Mapping[str, Any]) -> None:
    """Build what is the user's own, and read a first prompt of each source, in a scratch folder."""
    with tempfile.TemporaryDirectory(prefix="astraflow-") as scratch:

        def build(kind: Kind, table: ComponentTable, name: str) -> Any:
            context = component_context(config, Path(scratch), "launcher", "", name, "")
            try:
                return catalog.build(kind, table, context)
            except AstraFlowError:
                raise
            except Exception as error:
                raise PreflightError(
                    f"{name}: {kind} {table.use!r} cannot be built: {type(error).__name__}: {error}"
                ) from error

        sources = {"prompts": config.prompts} | {
            f"eval.sets.{name}": table for name, table in config.eval.sets.items()
        }
        for name, table in sources.items():
            _read_first(build(Kind.PROMPT_SOURCE, table, name), name, table.use)
        for kind, own in ((Kind.WORKFLOW, config.workflow), (Kind.REWARD, config.reward)):
            if own is not None and kind.value not in objects:
                build(kind, own, kind.value)


def _read_first(source: Any, where: str, use: str) -> None:
    try:
        count = len(source)
        if count > 0:
            source[0]
    except AstraFlowError:
        raise
    except Exception as error:
        raise PromptError(
            f"{where}: the first prompt of {use!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
    if count < 1:
        raise PromptError(f"{where}: {use!r} has no prompts; give it data with at least one")


def described_plugins(loaded: LoadedConfig) -> list[dict[str, Any]]:
    """The distributions that the run's components come from, then what no distribution provides."""
    found: dict[str, dict[str, Any]] = {}
    for path, (selected, _) in sorted(loaded.components.items()):
        key = selected.distribution or selected.qualified
        entry = found.setdefault(
            key,
            {
                "plugin": selected.plugin,
                "distribution": selected.distribution,
                "version": selected.version,
                "packaged": selected.packaged,
                "components": {},
            },
        )
        entry["components"][path] = selected.component.name
    for name in loaded.config.plugins.enable:
        plugin = loaded.catalog.plugin(name)
        found.setdefault(
            plugin.distribution,
            {
                "plugin": plugin.name,
                "distribution": plugin.distribution,
                "version": plugin.version,
                "packaged": True,
                "components": {},
            },
        )
    return sorted(found.values(), key=lambda entry: (not entry["packaged"], entry["distribution"]))


def _new_directory(config: RunConfig) -> Path:
    """``NAME-YYYYmmdd-HHMMSS`` under ``[run] directory``, never one that exists."""
    base = Path(config.run.directory).expanduser().absolute()
    name = f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):
            directory = base / (name if attempt == 1 else f"{name}-{attempt}")
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            (directory / "logs").mkdir()
            return directory
    except OSError as error:
        raise UserError(
            f"run.directory: cannot write to {str(base)!r}: {error.strerror}; choose another folder with "
            "--set run.directory=FOLDER"
        ) from error
    raise UserError(
        f"run.directory: {str(base)!r} has 999 runs {name!r} already; choose another name"
    )
