"""Conformance of a manifest: strings only, cheap to import, and consistent with its components."""

from __future__ import annotations

import importlib
import inspect
import sys
import typing
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from astraflow_core.catalog import Catalog
from astraflow_core.component import Component, Kind, load_attribute
from astraflow_core.errors import PluginError
from astraflow_core.installed.discovery import BadManifest, State, read_api, read_manifest
from astraflow_core.installed.entry_points import GROUP
from astraflow_testing.conformance._processes.manifest_probe import probe
from astraflow_testing.conformance.subject import Conformance, violated

BACKENDS = frozenset(
    {
        "accelerate", "deepspeed", "flax", "jax", "megatron", "numba", "ray", "sglang", "tensorflow",
        "torch", "transformers", "triton", "vllm",
    }
)  # fmt: skip
"""Packages that may be imported only in the process of a component that needs them."""
LONGEST_SUMMARY = 80
LIGHT = frozenset({"astraflow_core", "pluggy"})


class ManifestConformance(Conformance):
    """Requirements of every manifest module.

    Required fixture ``manifest``: the name of the module, as in the entry point::

        class TestManifest(ManifestConformance):
            @pytest.fixture
            def manifest(self) -> str:
                return "astraflow_plugin_mine.manifest"
    """

    @pytest.fixture
    def manifest(self) -> str:
        """Required: the name of the manifest module, as the entry point gives it."""
        pytest.fail(
            "define the fixture `manifest`: return the manifest module's name, "
            "for example 'astraflow_plugin_mine.manifest'"
        )

    @pytest.fixture
    def module(self, manifest: str) -> ModuleType:
        """The imported manifest."""
        return importlib.import_module(manifest)

    @pytest.fixture
    def components(self, module: ModuleType) -> tuple[tuple[Kind, Component], ...]:
        """What the manifest registers."""
        try:
            return read_manifest("examined", module)[0]
        except BadManifest as error:
            violated("component", f"{module.__name__}: {error}", "a sound manifest")

    def test_declares_its_api_version(self, module: ModuleType) -> None:
        """``ASTRAFLOW_API`` exists, and this core supports it."""
        try:
            read_api(module)
        except BadManifest as error:
            violated("component", str(error), "ASTRAFLOW_API = (major, minor) that the core speaks")

    def test_registers_valid_components(self, module: ModuleType) -> None:
        """Hooks are known and marked; names, references and capabilities well-formed; at least one
        component, command or lifecycle hook."""
        try:
            declared = read_manifest("examined", module)
        except BadManifest as error:
            violated(
                "component",
                f"{module.__name__}: {error}",
                "known hooks marked with @hookimpl, each returning Components with lower_case names, "
                "'module:attribute' references and flags of capabilities.py",
            )
        if not any(declared):
            violated(
                "hookspecs",
                f"{module.__name__} implements no hook",
                "at least one hook of a plugin",
            )

    def test_it_is_discovered(self, manifest: str) -> None:
        """One installed distribution names the module in the group of entry points."""
        found = [plugin for plugin in Catalog.discover().plugins if plugin.manifest == manifest]
        if not found:
            violated(
                "discovery",
                f"no installed distribution names {manifest} as an entry point",
                f"[project.entry-points.{GROUP}] with NAME = '{manifest}', and the package installed",
            )
        for plugin in found:
            if plugin.state is State.CONFLICTING:
                violated("discovery", f"plugin {plugin.name!r}: {plugin.problem}", "a unique name")

    def test_answers_the_same_each_time(
        self, module: ModuleType, components: tuple[tuple[Kind, Component], ...]
    ) -> None:
        """Registration depends on nothing but the manifest."""
        again = read_manifest("examined", module)[0]
        if again != components:
            violated("hookspecs", "a second call registered other components", "one fixed answer")

    def test_importing_it_imports_nothing_else(self, manifest: str) -> None:
        """In a fresh interpreter: no third-party module, nothing of the plugin but the manifest."""
        imported = probe(manifest)
        assert not imported.error, imported.error
        parts = manifest.split(".")
        own = {".".join(parts[: depth + 1]) for depth in range(len(parts))}
        heavy = sorted(
            name
            for name in imported.manifest
            if name not in own
            and (top := name.partition(".")[0]) not in LIGHT
            and top not in sys.stdlib_module_names
        )
        if heavy:
            violated(
                "component",
                f"importing {manifest} and calling its hooks also imported {', '.join(heavy[:8])}",
                "strings only: targets and configs are imported when a run names them",
            )

    def test_configs_import_no_backend(self, manifest: str) -> None:
        """A run is validated on machines without the backend."""
        imported = probe(manifest)
        assert not imported.error, imported.error
        heavy = sorted({name.partition(".")[0] for name in imported.configs} & BACKENDS)
        if heavy:
            violated(
                "component",
                f"importing the configs of {manifest} imported {', '.join(heavy)}",
                "configs that load where the backend is not installed",
            )

    def test_summaries_describe_the_components(
        self, components: tuple[tuple[Kind, Component], ...]
    ) -> None:
        """One line for ``astraflow plugins``."""
        for kind, component in components:
            text = component.summary
            if not text.strip() or "\n" in text:
                violated(
                    "component", f"{kind} {component.name!r} has the summary {text!r}", "a line"
                )
            if len(text) > LONGEST_SUMMARY:
                violated(
                    "component",
                    f"the summary of {kind} {component.name!r} has {len(text)} characters",
                    f"at most {LONGEST_SUMMARY}",
                )

    def test_targets_can_be_imported_and_called(
        self, manifest: str, components: tuple[tuple[Kind, Component], ...]
    ) -> None:
        """Each target is a factory of (config, context); a target whose backend is absent is left out."""
        absent = []
        for kind, component in components:
            try:
                target = load_attribute(component.target)
            except PluginError as error:
                missing = _missing_backend(error, manifest)
                if missing is None:
                    violated(
                        "component", f"{kind} {component.name!r}: {error}", "a target to import"
                    )
                absent.append(missing)
                continue
            try:
                inspect.signature(target).bind(None, None)
            except TypeError as error:
                violated(
                    "component",
                    f"{kind} {component.name!r}: {component.target} is {target!r}: {error}",
                    "a factory called as factory(config, context)",
                )
        if absent:
            pytest.skip(f"not installed here: {', '.join(sorted(set(absent)))}")

    def test_configs_are_frozen_and_forbid_unknown_keys(
        self, components: tuple[tuple[Kind, Component], ...]
    ) -> None:
        """A misspelt key is an error, at every depth, and a validated config does not change."""
        for kind, component in components:
            if component.config is None:
                continue
            who = f"{kind} {component.name!r}: {component.config}"
            try:
                model = load_attribute(component.config)
            except PluginError as error:
                violated("component", f"{who}: {error}", "a config to import")
            if not (isinstance(model, type) and issubclass(model, BaseModel)):
                violated("component", f"{who} is {model!r}", "a pydantic model")
            if not _refuses_unknown_keys(model):
                violated("component", f"{who} accepts unknown keys", 'extra="forbid"')
            for part in _models(model):
                if not part.model_config.get("frozen"):
                    violated("component", f"{who}: {part.__name__} is not frozen", "frozen=True")
                if part.model_config.get("extra") != "forbid":
                    violated(
                        "component", f"{who}: {part.__name__} takes unknown keys", 'extra="forbid"'
                    )

    def test_keys_are_described(self, components: tuple[tuple[Kind, Component], ...]) -> None:
        """``astraflow config explain`` and the generated pages show these descriptions."""
        for kind, component in components:
            if component.config is None:
                continue
            for part in _models(load_attribute(component.config)):
                bare = [name for name, key in part.model_fields.items() if not key.description]
                if bare:
                    violated(
                        "component",
                        f"{kind} {component.name!r}: {part.__name__} does not describe {bare}",
                        "a description for every key",
                    )


def _missing_backend(error: PluginError, manifest: str) -> str | None:
    """The package that an import lacked, if it is none of the plugin's own and none of the core's."""
    cause = error.__cause__
    if not isinstance(cause, ModuleNotFoundError) or not cause.name:
        return None
    top = cause.name.partition(".")[0]
    return None if top in (manifest.partition(".")[0], "astraflow_core") else top


def _refuses_unknown_keys(model: type[BaseModel]) -> bool:
    try:
        model.model_validate({"no_such_key_": 1})
    except ValidationError as error:
        return any(found["type"] == "extra_forbidden" for found in error.errors())
    return False


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """A config model and those inside its fields."""
    seen: list[type[BaseModel]] = []

    def visit(annotation: Any) -> None:
        for inner in typing.get_args(annotation):
            visit(inner)
        if not isinstance(annotation, type) or annotation in seen:
            return
        if issubclass(annotation, BaseModel):
            seen.append(annotation)
            for key in annotation.model_fields.values():
                visit(key.annotation)

    visit(model)
    yield from seen
