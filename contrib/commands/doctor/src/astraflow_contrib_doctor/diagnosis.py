"""What `astraflow doctor` looks at: each finding states a fact and, for a problem, the fix."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_contrib_doctor.finding import Finding
from astraflow_contrib_doctor.transport_security import of_tls
from astraflow_core.component import Kind
from astraflow_core.config.environments import ATTRIBUTE, environment_of
from astraflow_core.errors import AstraFlowError, PluginError, PreflightError, UserError
from astraflow_core.installed.discovery import State
from astraflow_core.installed.origins import how_to_add
from astraflow_core.installed.requirements import RUNTIME, missing_runtime, runtime_requirements
from astraflow_runtime.cli.installation.plugin_status import AUTHORS, remedy, slow_manifest
from astraflow_wire.http.listening import OF_THE_PORT, remedy_for

if TYPE_CHECKING:
    from astraflow_core.catalog import Catalog, Selected
    from astraflow_core.config.load import LoadedConfig
    from astraflow_core.installed.discovery import Plugin

_INTERPRETER_DEADLINE_S = 60.0
_LITTLE_DISK = 2**30
PLUGIN = "plugin "
"""How the subject of a finding about a plugin begins."""
_ROLES = ("engine", "trainer")
"""Kinds whose tables may name an interpreter."""


def of_machine() -> Iterator[Finding]:
    """Interpreter, cores and memory."""
    from astraflow_runtime.launch.local.threads import usable_cores

    yield Finding("ok", "python", f"{platform.python_version()} at {sys.executable}")
    yield Finding("ok", "cores", f"{usable_cores()} usable of {os.cpu_count() or 1}")
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        page = os.sysconf("SC_PAGE_SIZE")
        total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
        yield Finding("ok", "memory", f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB unused")


def of_plugins(catalog: Catalog) -> Iterator[Finding]:
    """Each installed plugin: usable, and its runtime present."""
    for plugin in catalog.plugins:
        subject = f"{PLUGIN}{plugin.name}"
        release = f"{plugin.distribution} {plugin.version}"
        yield from _of_trackers(plugin)
        missing = missing_runtime(plugin.metadata)
        if plugin.healthy and (slow := slow_manifest(plugin)):
            yield Finding("warning", subject, slow, AUTHORS.format(who=plugin.distribution))
        if plugin.state is State.DISABLED:
            yield Finding("ok", subject, f"{release}, not imported: {plugin.problem}")
        elif not plugin.healthy:
            fix = remedy(plugin)
            yield Finding("warning", subject, f"{release} cannot be used: {plugin.problem}", fix)
        elif missing and _needs_environment(plugin):
            command = f"astraflow env create {plugin.name} --plugin {plugin.name}"
            text = f"{release}, whose backend needs a separate interpreter: {command}"
            yield Finding("ok", subject, text)
        elif missing:
            yield Finding(
                "warning", subject, f"{release} lacks {', '.join(missing)}", _install(plugin)
            )
        else:
            yield Finding("ok", subject, release + _present(plugin))


def _of_trackers(plugin: Plugin) -> Iterator[Finding]:
    """Trackers of a plugin that lack methods, which no run would take."""
    from astraflow_runtime.config.targets import lacking_methods

    for kind, component in plugin.components:
        if kind is Kind.TRACKER and (lacking := lacking_methods(component)):
            subject, fix = f"tracker {component.name}", AUTHORS.format(who=plugin.distribution)
            yield Finding(
                "warning", subject, f"{plugin.distribution} {plugin.version} {lacking}", fix
            )


def of_run(loaded: LoadedConfig, file: str) -> Iterator[Finding]:
    """Whether the run of a file can start."""
    yield Finding("ok", file, "the configuration is valid and its components fit together")
    yield from _of_components(loaded)
    yield from _of_interpreters(loaded)
    yield from _of_models(loaded)
    yield from _of_models_files(loaded)
    yield from _of_agreement(loaded)
    yield from _of_data(loaded)
    yield _of_directory(Path(loaded.config.run.directory))
    yield _of_port(loaded.config.dataflow.host, loaded.config.dataflow.port)
    yield from of_tls(loaded.config)


def _of_components(loaded: LoadedConfig) -> Iterator[Finding]:
    """A component of the run whose runtime is absent here, or that cannot be imported."""
    from astraflow_runtime.config.lone_groups import lone_group_problems
    from astraflow_runtime.config.targets import target_problems, tracker_problems

    for path, problem in tracker_problems(loaded):
        who = loaded.components[path][0].distribution or "its package"
        yield Finding("problem", path, problem, AUTHORS.format(who=who))
    for path, problem in target_problems(loaded):
        plugin = loaded.components[path][0].distribution
        yield Finding("problem", path, problem, AUTHORS.format(who=plugin))
    for line in lone_group_problems(loaded):
        path, _, text = line.partition(": ")
        problem, _, fix = text.partition("; ")
        yield Finding("problem", path, problem, fix)
    for path, (selected, _) in loaded.components.items():
        if _own_python(loaded, path):
            continue
        missing = missing_runtime(selected.metadata)
        who = f"{selected.kind} {selected.component.name!r}"
        if missing and selected.metadata is not None:
            fix = how_to_add(RUNTIME, selected.metadata)
            if selected.kind in (*_ROLES, "tracker") and _needs_environment(
                loaded.catalog.plugin(selected.plugin)
            ):
                fix = _own_environment(path, selected.plugin)
            yield Finding("problem", path, f"{who} lacks {', '.join(missing)}", fix)


def _of_interpreters(loaded: LoadedConfig) -> Iterator[Finding]:
    """Roles with an interpreter of their own: it exists, and has the same core and plugin."""
    from astraflow_core import __version__

    for path, (selected, _) in loaded.components.items():
        python = _own_python(loaded, path)
        if not python:
            continue
        where = f"{path}.python"
        if shutil.which(python) is None:
            yield Finding(
                "problem",
                where,
                f"there is no interpreter {python!r}",
                _making(loaded, path, python, selected),
            )
            continue
        install = f"{python} -m pip install 'astraflow-core=={__version__}'"
        if selected.packaged:
            install += f" '{selected.distribution}[{RUNTIME}]=={selected.version}'"
        try:
            plugins = _plugins_of(python)
        except UserError as error:
            yield Finding("problem", where, str(error), install)
            continue
        yield _skew(where, selected, plugins, install)


def _skew(where: str, selected: Selected, plugins: list[dict[str, Any]], install: str) -> Finding:
    from astraflow_core import __version__

    has = {plugin["distribution"]: plugin for plugin in plugins}
    wanted = {"astraflow-core": __version__}
    if selected.packaged:
        wanted[selected.distribution] = selected.version
    for distribution, version in wanted.items():
        other = has.get(distribution)
        if other is None:
            return Finding("problem", where, f"{distribution} is not installed there", install)
        if other["problem"]:
            return Finding(
                "problem",
                where,
                f"{distribution} cannot be used there: {other['problem']}",
                install,
            )
        if other["version"] != version:
            text = f"has {distribution} {other['version']}, this interpreter {version}"
            return Finding("problem", where, text, install)
    return Finding("ok", where, "same versions as here")


def _plugins_of(python: str) -> list[dict[str, Any]]:
    command = [python, "-m", "astraflow_core"]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_INTERPRETER_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{python} cannot be run: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"{python} has no working astraflow-core: {last}")
    plugins: list[dict[str, Any]] = json.loads(done.stdout)
    return plugins


def _of_data(loaded: LoadedConfig) -> Iterator[Finding]:
    """Whether each prompt source has a first prompt; a missing target was reported before."""
    from astraflow_runtime.config.targets import target_problems
    from astraflow_runtime.launch.planning.prepare import first_prompt

    if any(target_problems(loaded)):
        return
    try:
        first_prompt(loaded.catalog, loaded.config)
    except AstraFlowError as error:
        yield Finding("problem", "prompts", str(error), "fix what it names")


def _of_models(loaded: LoadedConfig) -> Iterator[Finding]:
    from astraflow_core.config.environments import cache_folder
    from astraflow_runtime.models.resolver import ModelResolver

    hooks, seed = ModelResolver(loaded.catalog), loaded.config.run.seed
    for name, served in loaded.config.served.items():
        path = f"{'engines' if served.frozen else 'policies'}.{name}.model"
        try:
            text = hooks.check_model(served.model, seed, cache_folder(), weights=not served.frozen)
        except (PreflightError, PluginError) as error:
            yield Finding("problem", path, str(error), f"set {path} to a Hugging Face folder")
        else:
            yield Finding("ok", path, text)


def _of_models_files(loaded: LoadedConfig) -> Iterator[Finding]:
    """Whether the models have the experts that ``router_replay`` would record, read the ``images`` that prompts have, and can
    be computed with ``batch_invariant``: of those that need not be fetched."""
    from astraflow_core.config.environments import cache_folder
    from astraflow_runtime.config.exactness import KEY, is_exact
    from astraflow_runtime.models.resolver import ModelResolver

    resolver = ModelResolver(loaded.catalog)
    for name, policy in loaded.config.policies.items():
        asked = (
            (policy.router_replay, "router_replay", router_replay, "has experts"),
            (policy.images, "images", images, "reads images"),
            (is_exact(policy), f"engine.{KEY}", exact, f"can be computed with {KEY}"),
        )
        for wanted, key, check, question in asked:
            if not wanted:
                continue
            try:
                folder = resolver.at_hand(policy.model, loaded.config.run.seed, cache_folder())
            except (PreflightError, PluginError):
                continue  # reported by `_of_models`
            if folder is not None:
                yield check(name, policy.model, folder)
                continue
            text = f"whether {policy.model} {question} is checked when it is fetched: not by --static, at each start"
            yield Finding("ok", f"policies.{name}.{key}", text)


def router_replay(name: str, model: str, folder: Path) -> Finding:
    """Whether the ``model`` of a policy, which is in ``folder``, has experts."""
    from astraflow_runtime.models.files import check_experts

    where = f"policies.{name}.router_replay"
    try:
        layers = check_experts(name, model, folder)
    except PreflightError as error:
        return Finding(
            "problem",
            where,
            str(error).removeprefix(f"{where}: ").removesuffix("; leave the key out"),
            "leave the key out",
        )
    text = f"layers with experts: {layers.layers}, and {layers.top_k} of {layers.experts} experts for a token"
    return Finding("ok", where, text)


def images(name: str, model: str, folder: Path) -> Finding:
    """Whether the ``model`` of a policy, which is in ``folder``, reads images."""
    from astraflow_runtime.models.files import check_images

    where = f"policies.{name}.images"
    try:
        found = check_images(name, model, folder)
    except PreflightError as error:
        fix = "; else leave the key out"
        text = str(error).removeprefix(f"{where}: ").removesuffix(fix)
        return Finding("problem", where, text, "name another model, or leave the key out")
    return Finding("ok", where, f"an image becomes {found.length} tokens")


def exact(name: str, model: str, folder: Path) -> Finding:
    """Whether ``batch_invariant`` is made for the ``model`` of a policy, which is in ``folder``."""
    from astraflow_runtime.models.files import check_exact

    where = f"policies.{name}.engine.batch_invariant"
    try:
        check_exact(name, model, folder)
    except PreflightError as error:
        text, _, remedy = str(error).removeprefix(f"{where}: ").partition("; ")
        return Finding("problem", where, text, remedy)
    return Finding("ok", where, "the model is of a kind that it is made for")


def _of_agreement(loaded: LoadedConfig) -> Iterator[Finding]:
    """How far the log-probs of engine and trainer may be apart: exact, or a gap that is measured."""
    from astraflow_runtime.config.exactness import PAIRS, is_exact, mismatch_expected

    every = loaded.config.run.probe_every
    for name, policy in loaded.config.policies.items():
        engine, trainer = (
            loaded.components[f"policies.{name}.{kind}"][1] for kind in ("engine", "trainer")
        )
        if is_exact(policy):
            text = "exact: batch_invariant on both sides, a gap of 0; "
            text += (
                f"each probe (every {every} updates) that finds another ends the run"
                if every
                else "no probe checks it, since run.probe_every is 0"
            )
        else:
            text = (
                f"measured: a gap is expected, {mismatch_expected(engine, trainer)}; exact are {PAIRS}, with "
                "batch_invariant = true in both"
            )
        yield Finding("ok", f"policies.{name} mismatch", text)


def _of_directory(directory: Path) -> Finding:
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Finding(
            "problem",
            "run.directory",
            f"{existing} cannot be written: {error.strerror}",
            "set run.directory to a folder that you own, or chmod u+w it",
        )
    free = shutil.disk_usage(existing).free
    text = f"{directory} can be written, {free / 2**30:.1f} GiB free"
    if free < _LITTLE_DISK:
        return Finding("warning", "run.directory", text, "delete old runs or set run.directory")
    return Finding("ok", "run.directory", text)


def _of_port(host: str, port: int) -> Finding:
    place = f"{host}:{port or 'any free port'}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        at_port = error.errno in OF_THE_PORT and not isinstance(error, socket.gaierror)
        return Finding(
            "problem",
            "dataflow.port" if at_port else "dataflow.host",
            f"{place} cannot be bound: {error.strerror or error}",
            remedy_for(port, error) or "set dataflow.host to an address of this machine",
        )
    return Finding("ok", "dataflow.port", f"{place} can be bound")


def _own_python(loaded: LoadedConfig, path: str) -> str:
    """The interpreter that the table at ``path`` names, if it does."""
    root, _, rest = path.partition(".")
    name, _, key = rest.partition(".")
    if root == "engines":
        return loaded.config.engines[name].python or ""
    if root == "trackers":
        return loaded.config.trackers[name].python or ""
    if root != "policies" or key not in _ROLES:
        return ""
    python: str | None = getattr(loaded.config.policies[name], key).python
    return python or ""


def _needs_environment(plugin: Plugin) -> bool:
    return getattr(plugin.module, ATTRIBUTE, None) is not None


def _making(loaded: LoadedConfig, path: str, python: str, selected: Selected) -> str:
    environment = environment_of(python)
    if environment is not None:
        return f"astraflow env create {environment} --plugin {selected.plugin}"
    if _needs_environment(loaded.catalog.plugin(selected.plugin)):
        return _own_environment(path, selected.plugin)
    folder = Path(python).parent.parent
    if Path(python).parent.name in ("bin", "Scripts") and folder.name not in ("", "usr", "local"):
        return f"python -m venv {folder}"
    return (
        f"set it to an interpreter that has astraflow-core and {selected.distribution}, or "
        f"remove {path}.python to use this one"
    )


def _own_environment(path: str, plugin: str) -> str:
    return f"astraflow env create {plugin} --plugin {plugin}, and {path}.python = 'env:{plugin}'"


def _present(plugin: Plugin) -> str:
    from importlib.metadata import version

    if plugin.metadata is None:
        return ""
    names = [requirement.name for requirement in runtime_requirements(plugin.metadata)]
    return f", with {', '.join(f'{name} {version(name)}' for name in names)}" if names else ""


def _install(plugin: Plugin) -> str:
    assert plugin.metadata is not None  # something of it is missing
    return how_to_add(RUNTIME, plugin.metadata)
