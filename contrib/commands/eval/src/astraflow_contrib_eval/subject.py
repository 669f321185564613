"""What is evaluated: a model under the configuration of a file, or a version of a run under its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from astraflow_contrib_eval.versions import RunModels, WantedVersion
from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import LoadedConfig
from astraflow_core.config.models import EngineTable, PolicyTable, RunConfig
from astraflow_core.config.rendering import render
from astraflow_core.config.sources import parse_value
from astraflow_core.errors import ConfigError, UserError
from astraflow_core.installed.provenance import module_folders
from astraflow_core.suggestions import did_you_mean
from astraflow_runtime.cli.run_directory import find_run, run_named
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.launch.planning.plan import check_interpreters
from astraflow_runtime.launch.planning.plugins_file import write_plugins
from astraflow_runtime.launch.planning.prepare import described_plugins
from astraflow_runtime.launch.planning.user_objects import (
    inherited_path,
    python_path,
    write_private,
)
from astraflow_runtime.models.folders import bring_back, check_models, resolve_models
from astraflow_runtime.models.resolver import ModelResolver
from astraflow_runtime.raas.episodes.dry_process import check_evaluated
from astraflow_runtime.raas.user_objects import FILE, read_own


@dataclass(frozen=True)
class Options:
    """How it is evaluated. ``file``: configuration of a model; ``engine``: name and keys of another engine for all
    policies; ``policy``: the one whose model is replaced, all by default."""

    file: str | None = None
    overrides: tuple[str, ...] = ()
    engine: str | None = None
    engine_keys: tuple[str, ...] = ()
    policy: str | None = None


@dataclass(frozen=True)
class EvaluationSubject:
    """``config`` has a model folder for each policy and engine; ``directory`` is that of this evaluation, with all that its
    processes read; ``versions``: policy → number of the run's version, if it is one."""

    label: str
    config: RunConfig
    catalog: Catalog
    directory: Path
    environment: dict[str, str]
    models: dict[str, str]
    versions: dict[str, int | None]
    run: Path | None = None
    note: str = ""


def find_subject(
    given: str | None, wanted: WantedVersion, options: Options, directory: Path
) -> EvaluationSubject:
    """What ``given`` means: a run by path or name, the newest for ``None``, else a model, for which ``options`` name a
    file. ``directory`` is empty and becomes that of the evaluation."""
    other = ", or a model and --config FILE"
    run = find_run(None, otherwise=other, named_by="a") if given is None else None
    if run is None and given is not None and (run := run_named(given)) is None:
        if options.file is None:
            _refuse(given)
        if wanted != WantedVersion():
            raise UserError(f"{given!r} is a model, which has no {wanted}; name a run instead")
    if run is None:
        assert given is not None
        return _model(given, options, directory)
    return _run(run.absolute(), wanted, options, directory)


def _refuse(given: str) -> None:
    if Path(given).exists() or ":" in given:
        raise UserError(
            f"{given!r} is a model, which does not define what to evaluate: give --config FILE, the TOML file of a "
            "run with [eval.sets], a workflow and a reward"
        )
    find_run(given, otherwise=", or a model and --config FILE")


def _model(model: str, options: Options, directory: Path) -> EvaluationSubject:
    assert options.file is not None
    plain = load_config(options.file, options.overrides)
    chosen = _chosen(plain.config, options)
    named = [f"policies.{policy}.model={model}" for policy in chosen]
    loaded = load_config(options.file, [*options.overrides, *named])
    config = resolve_models(loaded.config, ModelResolver(loaded.catalog))
    models = {name: table.model for name, table in loaded.config.policies.items()}
    versions: dict[str, int | None] = dict.fromkeys(models)
    return _laid_out(
        EvaluationSubject(model, config, loaded.catalog, directory, {}, models, versions),
        loaded,
        options,
    )


def _run(run: Path, wanted: WantedVersion, options: Options, directory: Path) -> EvaluationSubject:
    own = run / "config.toml"
    objects = (run / FILE).exists()
    before = load_config(own, workflow_given=objects)
    resolver = ModelResolver(before.catalog)
    bring_back(before.config, run, resolver)
    kept = RunModels(run, resolve_models(before.config, resolver), directory)
    source = own if options.file is None else options.file
    loaded = load_config(source, options.overrides, workflow_given=objects and options.file is None)
    config = loaded.config
    chosen = _chosen(config, options)
    unknown = [name for name in chosen if name not in before.config.policies]
    if unknown:
        raise UserError(
            f"{options.file}: policy {unknown[0]!r} is not one of the run in {run}, which has "
            f"{', '.join(before.config.policies)}; name its policies alike"
        )
    versions: dict[str, int | None] = dict.fromkeys(config.policies)
    policies = dict(config.policies)
    for name in chosen:
        versions[name], folder = kept.choose(name, wanted)
        policies[name] = policies[name].model_copy(update={"model": str(folder)})
    config = resolve_models(config.model_copy(update={"policies": policies}), resolver)
    if objects and options.file is None:
        write_private(directory / FILE, read_own(run / FILE))
    models = {name: table.model for name, table in config.policies.items()}
    label = f"{run.name}@{_versions_text(versions)}"
    start = wanted.best and all(versions[name] == 0 for name in chosen)
    note = (
        f"{run.name}: no version was better than the start, version 0, which is played"
        if start
        else ""
    )
    subject = EvaluationSubject(
        label, config, loaded.catalog, directory, {}, models, versions, run, note
    )
    return _laid_out(subject, loaded, options)


def _versions_text(versions: dict[str, int | None]) -> str:
    told = {f"{name} {version}" for name, version in versions.items() if version is not None}
    numbers = {version for version in versions.values() if version is not None}
    return str(numbers.pop()) if len(numbers) == 1 else ",".join(sorted(told))


def _chosen(config: RunConfig, options: Options) -> list[str]:
    """The policies whose model is evaluated."""
    if options.policy is None:
        return list(config.policies)
    if options.policy not in config.policies:
        raise UserError(
            f"--policy {options.policy!r}: the policies are {', '.join(config.policies)}"
            f"{did_you_mean(options.policy, config.policies)}"
        )
    return [options.policy]


def _laid_out(
    subject: EvaluationSubject, loaded: LoadedConfig, options: Options
) -> EvaluationSubject:
    """The subject with the engine that was asked for, checked, and its directory filled."""
    config = subject.config
    if options.engine is not None:
        table = _engine(subject.catalog, options.engine, options.engine_keys)
        policies: dict[str, PolicyTable] = {
            name: policy.model_copy(update={"engine": table})
            for name, policy in config.policies.items()
        }
        config = config.model_copy(update={"policies": policies})
    elif options.engine_keys:
        raise UserError("--engine-key: add --engine NAME, the engine of these keys")
    check_evaluated(config, subject.catalog)
    check_interpreters(config)
    check_models(config)
    plugins = described_plugins(loaded)
    write_plugins(subject.directory, plugins)
    environment = python_path(inherited_path(), module_folders(plugins))
    return replace(subject, config=config, environment=environment)


def _engine(catalog: Catalog, name: str, keys: Sequence[str]) -> EngineTable:
    """The table of another engine; :class:`ConfigError` for keys that it does not have. It loads its model from a folder and
    takes no further weights, so that one that cannot is as good as any."""
    given = {}
    for text in keys:
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            raise UserError(f"--engine-key {text!r}: expected KEY=VALUE, such as max_batch=64")
        given[key.strip()] = parse_value(value.strip())
    selected = catalog.select(Kind.ENGINE, name)
    own = {key: value for key, value in given.items() if key not in EngineTable.model_fields}
    checks: list[tuple[type[BaseModel], dict[str, object]]] = [
        (EngineTable, {"use": name, **given})
    ]
    if (model := selected.config_model()) is not None:
        checks.append((model, own))
    elif own:
        raise UserError(f"--engine-key: engine {name!r} has no key {', '.join(own)}")
    for checked, values in checks:
        try:
            checked.model_validate(values)
        except ValidationError as error:
            raise ConfigError(render(error, checked, f"--engine {name}")) from error
    return EngineTable.model_validate({"use": name, **given})
