"""From a TOML file to a validated run: every problem at once, and where each value came from."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from astraflow_core.catalog import Catalog, Selected
from astraflow_core.config.models import RunConfig, RunTable, TlsTable
from astraflow_core.config.paths import absolute, resolved_options
from astraflow_core.config.rendering import join, render
from astraflow_core.config.sources import Layers, Origin, apply_overrides, read_file
from astraflow_core.config.tables import AUTO, TablePlace, component_tables
from astraflow_core.errors import ConfigError, PluginError
from astraflow_core.installed.discovery import DISABLE_VARIABLE, disabled_by_environment
from astraflow_core.installed.entry_points import RUNTIME
from astraflow_core.installed.provenance import lock_of, module_folders, read_plugins
from astraflow_core.seeds import derive_seed
from astraflow_core.shared_secret import shared_secret
from astraflow_core.suggestions import nearest
from astraflow_core.types import ComponentContext, RunInfo

AT_START = frozenset(sys.path)
"""Where every process of this interpreter looks for modules."""


@dataclass(frozen=True)
class LoadedConfig:
    """A validated run. ``origins`` maps the dotted path of each value that was set to its file or
    ``"--set"`` (what is absent has its default); ``components`` maps the path of each component table to
    what it selected and its validated keys. ``notes``: what was chosen automatically, and why, and what
    comes from a base file where that is easily overlooked. ``label`` names the file in errors, empty if there is none."""

    config: RunConfig
    origins: dict[str, str]
    catalog: Catalog
    components: dict[str, tuple[Selected, BaseModel | None]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    label: str = ""


def read_config(
    source: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    catalog: Catalog | None = None,
    *,
    workflow_given: bool = False,
) -> LoadedConfig:
    """Read and override a run, and validate each of its tables on its own; a transport may still be ``"auto"``.

    ``source`` is a TOML file or the same as a mapping (the Python API). ``overrides`` are texts
    ``"a.b.c=VALUE"``. Relative paths (keys of components whose type is a path, ``python``, and a ``model``
    that is a folder there) start from the file that set them. ``workflow_given`` allows a run without
    ``[workflow]``, whose object comes from elsewhere. Raises :class:`ConfigError` with every problem.
    """
    if isinstance(source, Mapping):
        label, layers = "", Layers()
        layers.add(source, Origin("the given table", Path.cwd()))
    else:
        label, layers = str(source), read_file(Path(source))
    problems = apply_overrides(layers, overrides)
    _make_importable(layers, Path(label).parent if label else None)
    catalog = catalog or catalog_of(layers.raw)
    if label:
        catalog = catalog.locked(lock_of(Path(label).parent))
    components: dict[str, tuple[Selected, BaseModel | None]] = {}
    for place in component_tables(layers.raw):
        _check_component(place, layers, catalog, components, problems)
    _resolve_models(layers)
    _resolve_own_paths(layers)
    if "workflow" not in layers.raw and not workflow_given:
        names = ", ".join(entry.qualified for entry in catalog.components("workflow")) or "none"
        problems.append(
            f"workflow: this table is required: [workflow] with use = a workflow (installed: {names})"
        )
    try:
        config = RunConfig.model_validate(layers.raw)
    except ValidationError as error:
        problems = _without_mistyped(layers, render(error, RunConfig) + problems)
        raise ConfigError(sorted(problems, key=_place_in_file), label) from error
    problems += _plugin_problems(config, catalog)
    if problems:
        raise ConfigError(sorted(problems, key=_place_in_file), label)
    problems = _add_defaults(config, catalog, components)
    if problems:
        raise ConfigError(problems, label)
    origins = {path: origin.label for path, origin in layers.origins.items()}
    notes = (*_taken_over(layers, components), *layers.notes, *_of_several(config, catalog))
    return LoadedConfig(config, origins, catalog, components, notes, label)


def _make_importable(layers: Layers, run_directory: Path | None) -> None:
    """Put the folders of a run's own modules (``use = "module:attr"``, ``[rollouts] redact``), those of the files that name
    them, at the end of ``sys.path``, where they shadow nothing. ``run_directory``: of a run that has started, which
    recorded where it found them."""
    folders = module_folders(read_plugins(run_directory)) if run_directory is not None else []
    tables = [(place.path, place.table) for place in component_tables(layers.raw)]
    own = [p for p, t in tables if isinstance(t, Mapping) and ":" in str(t.get("use", ""))]
    keys = ["rollouts.redact", *(f"{path}.use" for path in own)]
    origins = [origin for key in keys if (origin := layers.origin(key)) is not None]
    folders += [str(origin.folder.resolve()) for origin in origins]
    new = [folder for folder in dict.fromkeys(folders) if folder not in sys.path]
    sys.path += new
    if new:
        importlib.invalidate_caches()


def _of_several(config: RunConfig, catalog: Catalog) -> Iterator[str]:
    """Which of several components of one name was selected."""
    for place in component_tables(config):
        use = place.table.use
        if use != AUTO and (rivals := catalog.rivals(place.kind, use)):
            chosen, others = catalog.select(place.kind, use).qualified, " and ".join(rivals)
            yield f"{place.path}: {use!r} is {chosen}; {others} has the same name"


def _without_mistyped(layers: Layers, problems: list[str]) -> list[str]:
    """One problem for each policy or engine of which only ``--set`` speaks and whose name is like that of another,
    instead of all the keys that it lacks."""
    for root in ("policies", "engines"):
        tables = layers.raw.get(root)
        names = list(tables) if isinstance(tables, dict) else []
        only_set = [name for name in names if layers.is_overridden(f"{root}.{name}")]
        for name in only_set:
            match = nearest(name, [other for other in names if other not in only_set])
            lacking = [line for line in problems if line.startswith(f"{root}.{name}.")]
            if match is not None and lacking:
                line = f"{root}.{name}: it is set only by --set; did you mean {match!r}?"
                problems = [line, *(each for each in problems if each not in lacking)]
    return problems


def _taken_over(layers: Layers, components: Iterable[str]) -> Iterator[str]:
    """Keys that a reader may believe are not set."""
    for path in components:
        keys = layers.taken_over(path)
        files = " and ".join(dict.fromkeys(Path(file).name for file in keys.values()))
        if keys:
            yield f"{path}: {', '.join(keys)} as in {files}, which has the same component there"


def run_info(config: RunConfig, directory: Path) -> RunInfo:
    """What processes and hooks know about the run in ``directory``."""
    run = config.run
    return RunInfo(
        run.name,
        run.seed,
        run.steps,
        run.max_staleness,
        tuple(config.policies),
        Path(directory),
        tuple(config.engines),
    )


def component_context(
    config: RunConfig, directory: Path, role: str, policy: str, name: str, token: str
) -> ComponentContext:
    """The context of the component ``name``, with its own seed and folder. ``token``: that of the process."""
    return ComponentContext(
        run=run_info(config, directory),
        role=role,
        policy=policy,
        seed=derive_seed(config.run.seed, role, policy, name),
        directory=Path(directory) / "state" / name,
        token=shared_secret(token),
    )


def catalog_of_run(config: RunConfig, directory: Path) -> Catalog:
    """The catalog of a process of the run that lives in ``directory``."""
    found = Catalog.discover(disable=config.plugins.disable, only=config.plugins.only)
    return found.locked(lock_of(directory))


def catalog_of(raw: Mapping[str, Any]) -> Catalog:
    """The catalog that ``[plugins]`` of a raw run asks for, before validation: what it bars is not
    imported."""
    table = raw.get("plugins")
    table = table if isinstance(table, Mapping) else {}
    disable, only = table.get("disable"), table.get("only")
    return Catalog.discover(
        disable=[str(name) for name in disable] if isinstance(disable, list | tuple) else (),
        only=[str(name) for name in only] if isinstance(only, list | tuple) else None,
    )


def _check_component(
    place: TablePlace,
    layers: Layers,
    catalog: Catalog,
    components: dict[str, tuple[Selected, BaseModel | None]],
    problems: list[str],
) -> None:
    """Validate one raw component table, turning its paths absolute in place."""
    table = place.table
    use = table.get("use", place.model.model_fields["use"].default)
    python = table.get("python")
    if "python" in place.core_keys and isinstance(python, str) and "/" in python:
        table["python"] = absolute(python, layers.folder(join(place.path, "python")))
    if not (isinstance(use, str) and use):  # reported by the core's own models
        return
    options = {key: value for key, value in table.items() if key not in place.core_keys}
    if place.path.endswith(".transport") and use == AUTO:
        if options:
            problems.append(
                f"{place.path}: a transport that is chosen automatically takes no keys: "
                f"{', '.join(options)}; name a transport, or remove the keys"
            )
        return
    try:
        selected = catalog.select(place.kind, use)
        model = selected.config_model()
        if model is not None:
            clash = sorted((model.model_fields.keys() & place.core_keys) - {"use"})
            if clash:
                raise PluginError(
                    f"{place.kind} {use!r} cannot define keys named {', '.join(clash)}: "
                    "they belong to the core"
                )
            options = resolved_options(options, model, place.path, layers.folder)
            table.update(options)
        components[place.path] = catalog.validate_options(place.kind, use, options, place.path)
    except ConfigError as error:
        problems += error.problems
    except PluginError as error:
        problems.append(f"{place.path}.use: {error}")


def _add_defaults(
    config: RunConfig, catalog: Catalog, components: dict[str, tuple[Selected, BaseModel | None]]
) -> list[str]:
    """Validate the components that the core names by default; returns problems."""
    problems = []
    for place in component_tables(config):
        if place.path not in components and place.table.use != AUTO:
            try:
                components[place.path] = catalog.validate(place.kind, place.table, place.path)
            except PluginError as error:
                problems.append(f"{place.path}.use: {error}")
    return problems


def _resolve_models(layers: Layers) -> None:
    """Point ``model`` at the folder next to the file that names it, if it exists."""
    for root in ("policies", "engines"):
        tables = layers.raw.get(root)
        for name, table in tables.items() if isinstance(tables, Mapping) else ():
            model = table.get("model") if isinstance(table, Mapping) else None
            origin = layers.origin(f"{root}.{name}.model")
            if isinstance(model, str) and model and origin:
                folder = absolute(model, origin.folder)
                if Path(folder).is_dir():
                    table["model"] = folder


def _resolve_own_paths(layers: Layers) -> None:
    """``run.directory`` and the files of ``[tls]`` start from the file that names them; a default from where the command is called."""
    if isinstance(tls := layers.raw.get("tls"), dict):
        tls.update(resolved_options(tls, TlsTable, "tls", layers.folder))
    table, origin = layers.raw.get("run"), layers.origin("run.directory")
    if not isinstance(table, dict):
        return
    text = table.get("directory", RunTable.model_fields["directory"].default)
    if isinstance(text, str):
        table["directory"] = absolute(text, origin.folder if origin else Path.cwd())


def _plugin_problems(config: RunConfig, catalog: Catalog) -> Iterator[str]:
    names = [plugin.name for plugin in catalog.plugins]
    for index, name in enumerate(config.plugins.enable):
        try:
            plugin = catalog.plugin(name)
        except PluginError as error:
            yield f"plugins.enable.{index}: {error}"
        else:
            if not plugin.healthy:
                yield f"plugins.enable.{index}: plugin {name!r} cannot be used: {plugin.problem}"
    disabled = [(f"plugins.disable.{i}", name) for i, name in enumerate(config.plugins.disable)]
    disabled += [(DISABLE_VARIABLE, name) for name in disabled_by_environment()]
    for where, name in disabled:
        match = nearest(name, names)
        if name == RUNTIME:
            yield f"{where}: the runtime's own plugin cannot be disabled"
        elif name not in names and match is not None:  # a typing error would let it in
            yield f"{where}: no plugin {name!r} is installed; did you mean {match!r}?"


def _place_in_file(problem: str) -> tuple[int, str]:
    """Sorts problems by table, in the order of the models; the order within a table stays."""
    path = problem.partition(":")[0].split(".")
    tables = list(RunConfig.model_fields)
    return tables.index(path[0]) if path[0] in tables else -1, ".".join(path[:2])
