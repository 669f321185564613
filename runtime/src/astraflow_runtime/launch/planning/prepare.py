"""Everything that can be known to be wrong before a process starts, and the directory of the run."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import AT_START, LoadedConfig, component_context
from astraflow_core.config.models import ComponentTable, RunConfig
from astraflow_core.errors import (
    AstraFlowError,
    ConfigError,
    PreflightError,
    PromptError,
    UserError,
)
from astraflow_core.installed.provenance import module_folders
from astraflow_core.types import Prompt
from astraflow_runtime.config.exactness import exact_policies
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.config.lone_groups import lone_group_notes, lone_group_problems
from astraflow_runtime.config.saved import as_comments, dump_toml
from astraflow_runtime.config.show import ORIGINS, origins_json
from astraflow_runtime.config.targets import target_problems, tracker_problems
from astraflow_runtime.config.transport_security import check_tls
from astraflow_runtime.forking.client import is_possible
from astraflow_runtime.hooks import Hooks
from astraflow_runtime.launch.planning.plan import check_interpreters, check_trackers
from astraflow_runtime.launch.planning.plugins_file import write_plugins
from astraflow_runtime.launch.planning.user_objects import (
    checked_objects,
    import_path,
    inherited_path,
    pickled,
    python_path,
    write_private,
)
from astraflow_runtime.launch.results.live_curves import wants_curves
from astraflow_runtime.models.files import check_context, check_exact, check_experts, check_images
from astraflow_runtime.models.folders import check_models, find_models, with_folders, write_models
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_runtime.raas.episodes.dry_process import (
    check_evaluated,
    dry_call,
    is_live,
    longest_s,
)
from astraflow_runtime.raas.user_objects import FILE, checked_reward, checked_workflow
from astraflow_runtime.rollouts.writer import redaction
from astraflow_runtime.telemetry.progress import progress
from astraflow_wire.host.disk import replace_file
from astraflow_wire.http.auth import new_token


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that may start, or (``resumed``) start again: ``config`` with every model a local folder, in its
    own ``directory``. ``plugins``: what provides the components, as in ``plugins.json``. ``notes``: what a
    person should know."""

    config: RunConfig
    catalog: Catalog
    hooks: Hooks
    directory: Path
    token: str = field(repr=False)
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
    wants_curves()
    is_possible()
    objects = checked_objects(workflow, reward)
    frozen = pickled(objects)
    loaded = load_config(source, overrides, workflow_given="workflow" in objects)
    config = loaded.config
    found = chain(target_problems(loaded), tracker_problems(loaded))
    problems = [f"{path}: {text}" for path, text in found]
    if problems := problems + lone_group_problems(loaded):
        raise ConfigError(problems, source if isinstance(source, str) else "")
    notes = (*loaded.notes, *lone_group_notes(loaded))
    redaction(config.rollouts.redact)
    check_evaluated(config, loaded.catalog)
    check_interpreters(config)
    check_tls(config)
    check_trackers(loaded)
    hooks = Hooks.for_run(loaded.catalog, config)
    with progress(f"model {', '.join(sorted({s.model for s in config.served.values()}))}"):
        models = find_models(config, ModelResolver(loaded.catalog))
    config = with_folders(config, models)
    check_models(config)
    _check_context(config)
    _check_experts(config)
    _check_images(config)
    _check_exact(config)
    _check_loans(loaded, config)
    prompt = first_prompt(loaded.catalog, config)
    plugins = described_plugins(loaded)
    before = import_path() if objects else inherited_path()
    environment = python_path(before, module_folders(plugins))
    note = check_code(loaded.catalog, config, prompt, frozen if objects else b"", environment)
    token = new_token()
    directory = _new_directory(config)
    try:
        replace_file(directory / "config.toml", as_comments(notes) + dump_toml(config))
        replace_file(directory / ORIGINS, origins_json(loaded))
        write_plugins(directory, plugins)
        write_models(directory, models)
        write_private(directory / "token", token.encode())
        if objects:
            write_private(directory / FILE, frozen)
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        raise _cannot_write(directory.parent, error) from error
    return Prepared(
        config,
        loaded.catalog,
        hooks,
        directory,
        token,
        plugins,
        environment,
        notes=tuple(filter(None, [*notes, note])),
    )


def _check_context(config: RunConfig) -> None:
    """Refuse a ``max_tokens`` that leaves no room for a prompt; longer prompts show when they come."""
    for name, policy in config.policies.items():
        check_context(name, Path(policy.model), config.sampling.max_tokens)


def _check_experts(config: RunConfig) -> None:
    """Refuse to record the experts of a model that has none, or whose routers are not known."""
    for name, policy in config.policies.items():
        if policy.router_replay:
            check_experts(name, policy.model, Path(policy.model))


def _check_images(config: RunConfig) -> None:
    """Refuse images for a model that reads none."""
    for name, policy in config.policies.items():
        if policy.images:
            check_images(name, policy.model, Path(policy.model))


def _check_exact(config: RunConfig) -> None:
    """Refuse ``batch_invariant`` for a model that it does not support."""
    for name in exact_policies(config):
        policy = config.policies[name]
        check_exact(name, policy.model, Path(policy.model))


def _check_loans(loaded: LoadedConfig, config: RunConfig) -> None:
    """Refuse to train a policy on token ids of one that has another tokenizer."""
    for path, (selected, keys) in loaded.components.items():
        if "borrow" not in selected.component.capabilities:
            continue
        names = (path.split(".")[1], getattr(keys, "source", ""))
        if config.policies[names[1]].images and not config.policies[names[0]].images:
            raise PreflightError(
                f"{path}: {names[0]!r} cannot be trained on sequences of {names[1]!r}, which have images; set "
                f"policies.{names[0]}.images = true"
            )
        files = [Path(config.policies[name].model) / "tokenizer.json" for name in names]
        if all(file.exists() for file in files) and files[0].read_bytes() != files[1].read_bytes():
            raise PreflightError(
                f"{path}: {names[0]!r} cannot be trained on sequences of {names[1]!r}: their tokenizers differ "
                f"({files[0]}, {files[1]}), so the same ids stand for different texts; policies that share rows "
                "need models with the same tokenizer"
            )


def first_prompt(catalog: Catalog, config: RunConfig) -> Prompt:
    """The first prompt of the run; every source must have one, those of evaluations too."""
    sources = {"prompts": config.prompts} | {
        f"eval.sets.{name}": table for name, table in config.eval.sets.items()
    }
    with tempfile.TemporaryDirectory(prefix="astraflow-") as scratch:
        found = [
            _read_first(
                _build(catalog, config, Kind.PROMPT_SOURCE, table, name, Path(scratch)),
                name,
                table.use,
            )
            for name, table in sources.items()
        ]
    return found[0]


def check_code(
    catalog: Catalog,
    config: RunConfig,
    prompt: Prompt,
    objects: bytes,
    environment: Mapping[str, str],
) -> str:
    """Call workflow and reward once, or only build them if the environment disables the call, or no policy would
    play. Returns what the user should know."""
    if longest_s() is not None and not is_live(config, catalog):
        return dry_call(config, catalog, prompt, objects, environment)
    if not objects:
        with tempfile.TemporaryDirectory(prefix="astraflow-") as scratch:
            build = partial(_build, catalog, config)
            if own := config.workflow:
                checked_workflow(own.use, build(Kind.WORKFLOW, own, "workflow", Path(scratch)))
            if own := config.reward:
                checked_reward(own.use, build(Kind.REWARD, own, "reward", Path(scratch)))
    return ""


def _build(
    catalog: Catalog, config: RunConfig, kind: Kind, table: ComponentTable, name: str, scratch: Path
) -> Any:
    context = component_context(config, scratch, "launcher", "", name, "")
    try:
        return catalog.build(kind, table, context)
    except AstraFlowError:
        raise
    except Exception as error:
        raise PreflightError(
            f"{name}: {kind} {table.use!r} cannot be built: {type(error).__name__}: {error}"
        ) from error


def _read_first(source: Any, where: str, use: str) -> Prompt:
    if missing := [name for name in ("__len__", "__getitem__") if not hasattr(source, name)]:
        raise PromptError(
            f"{where}: what {use!r} makes has no {' and no '.join(missing)}: it is of type "
            f"{type(source).__name__}, and a prompt source has len(source) and source[index]"
        )
    try:
        count = len(source)
        first: Prompt | None = source[0] if count > 0 else None
    except AstraFlowError:
        raise
    except Exception as error:
        raise PromptError(
            f"{where}: the first prompt of {use!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
    if first is None:
        raise PromptError(f"{where}: {use!r} has no prompts; give it data with at least one prompt")
    return first


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
        provides = f"{selected.kind}/{selected.component.name}"
        entry["provides"] = sorted({*entry.get("provides", ()), provides})
        if not selected.packaged and (folder := _folder_of_module(selected.component.target)):
            entry["folder"] = folder
    if folder := _folder_of_module(redact := loaded.config.rollouts.redact):
        found[redact] = {
            "plugin": redact,
            "distribution": "",
            "version": "",
            "packaged": False,
            "components": {},
            "folder": folder,
        }
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


def _cannot_write(base: Path, error: OSError) -> UserError:
    return UserError(
        f"run.directory: cannot write to {str(base)!r}: {error.strerror}; choose another folder with "
        "--set run.directory=FOLDER"
    )


def _new_directory(config: RunConfig) -> Path:
    """``NAME-YYYYmmdd-HHMMSS`` under ``[run] directory``, never one that exists; for this user alone, since the logs and
    the journal hold prompts and texts."""
    base = Path(config.run.directory).expanduser().absolute()
    name = f"{config.run.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    try:
        base.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, 1000):
            directory = base / (name if attempt == 1 else f"{name}-{attempt}")
            try:
                directory.mkdir(0o700)
            except FileExistsError:
                continue
            (directory / "logs").mkdir()
            return directory
    except OSError as error:
        raise _cannot_write(base, error) from error
    raise UserError(
        f"run.directory: {str(base)!r} has 999 runs {name!r} already; choose another name"
    )


def _folder_of_module(reference: str) -> str | None:
    """The folder from which the module of ``"module:attr"`` was imported; ``None`` if every process of this
    interpreter finds it there, wherever it is started."""
    module: Any = sys.modules.get(reference.partition(":")[0].partition(".")[0])
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    folder = Path(file).parent.parent if hasattr(module, "__path__") else Path(file).parent
    everywhere = str(folder) in AT_START and folder != Path.cwd()
    return None if everywhere else str(folder.resolve())
