"""The components that a run can name: selected by name, validated by their own models, built on demand."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import metadata
from typing import TYPE_CHECKING, Any

from astraflow_core.capabilities import unknown_flags
from astraflow_core.component import (
    CannotImport,
    Component,
    Kind,
    is_reward_function,
    load_attribute,
)
from astraflow_core.errors import ConfigError, PluginError
from astraflow_core.installed.discovery import (
    DISABLE_VARIABLE,
    Plugin,
    find_plugins,
    find_unregistered,
)
from astraflow_core.installed.distributions import index
from astraflow_core.installed.provenance import check_version
from astraflow_core.suggestions import did_you_mean, nearest

if TYPE_CHECKING:
    from pydantic import BaseModel

    from astraflow_core.config.models import ComponentTable
    from astraflow_core.types import ComponentContext


@dataclass(frozen=True, slots=True)
class Selected:
    """A component that a run names, with its provider; ``plugin`` is empty for a ``module:attr``."""

    kind: Kind
    component: Component
    plugin: str = ""
    distribution: str = ""
    version: str = ""
    metadata: metadata.Distribution | None = field(default=None, repr=False, compare=False)

    @property
    def packaged(self) -> bool:
        """Whether a plugin provides it."""
        return bool(self.plugin)

    @property
    def qualified(self) -> str:
        """``"plugin/name"``, or ``"module:attr"`` if unpackaged: selects the same component anywhere."""
        return f"{self.plugin}/{self.component.name}" if self.plugin else self.component.target

    def load(self, reference: str) -> Any:
        """Import ``"module:attr"`` of this component; a missing backend says how to install it."""
        try:
            return load_attribute(reference)
        except CannotImport as error:
            raise self._import_failed(error.__cause__ or error) from error.__cause__

    def config_model(self) -> type[BaseModel] | None:
        """The pydantic model of its keys; ``None`` if it takes none."""
        if self.packaged:
            model = None if self.component.config is None else self.load(self.component.config)
        else:
            model = getattr(self.load(self.component.target), "Config", None)
        if model is None:
            return None
        if getattr(model, "model_config", {}).get("extra") != "forbid":
            raise PluginError(
                f"the config model of {self.kind} {self.qualified!r} must be a pydantic model that "
                "forbids unknown keys: derive it from astraflow_core.config.models.ConfigModel"
            )
        checked: type[BaseModel] = model
        return checked

    def build(self, config: BaseModel | None, context: ComponentContext) -> Any:
        """Call the component's factory; a reward that is a function of a view needs no call."""
        factory = self.load(self.component.target)
        if self.kind is Kind.REWARD and is_reward_function(factory):
            return factory
        try:
            return factory(config, context)
        except ModuleNotFoundError as error:
            raise self._import_failed(error) from error

    def _import_failed(self, error: BaseException) -> PluginError:
        from astraflow_core.installed.origins import how_to_add
        from astraflow_core.installed.requirements import RUNTIME, missing_runtime

        said = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        who = f"{self.kind} {self.component.name!r}"
        missing = missing_runtime(self.metadata)
        if missing and self.metadata is not None:
            return PluginError(
                f"{who} needs packages that are not installed: {', '.join(missing)}; "
                f"{how_to_add(RUNTIME, self.metadata)}"
            )
        if self.packaged:
            return PluginError(
                f"{who} of {self.distribution} {self.version} cannot be imported: {said}"
            )
        return PluginError(
            f"{who} cannot be imported: {said}; install its package, or put its file next to "
            "the config or on PYTHONPATH"
        )


class Catalog:
    """The plugins of this process and the components that they provide. ``lock``: the plugin that ``"KIND/NAME"``
    means where several provide it and the run has begun with one of them."""

    def __init__(self, plugins: Iterable[Plugin], lock: Mapping[str, str] | None = None) -> None:
        self.plugins = tuple(plugins)
        self._lock = dict(lock or {})

    def locked(self, lock: Mapping[str, str]) -> Catalog:
        """The same plugins, with names that mean what they meant when a run began."""
        return Catalog(self.plugins, lock)

    @staticmethod
    def discover(disable: Iterable[str] = (), only: Iterable[str] | None = None) -> Catalog:
        """The catalog of what is installed; scanned once per process for the same arguments.

        Plugins in ``disable`` (also: environment ``ASTRAFLOW_DISABLE_PLUGINS``) and, if ``only`` is given,
        those not in it are never imported; the runtime's plugin is always included.
        """
        return _discover(
            tuple(sys.path),
            os.environ.get(DISABLE_VARIABLE, ""),
            tuple(disable),
            None if only is None else tuple(only),
        )

    def plugin(self, name: str) -> Plugin:
        """The plugin of that name, healthy or not; :class:`PluginError` if none is installed."""
        for plugin in self.plugins:
            if plugin.name == name:
                return plugin
        names = [plugin.name for plugin in self.plugins]
        raise PluginError(
            f"no plugin {name!r} is installed{did_you_mean(name, names)} (installed: {', '.join(names)})"
        )

    def components(self, kind: Kind | str | None = None) -> Iterator[Selected]:
        """All components of the healthy plugins, in order of kind, name and plugin."""
        wanted = list(Kind) if kind is None else [Kind(kind)]
        for each in wanted:
            found = [
                _selected(plugin, each, component)
                for plugin in self.plugins
                if plugin.healthy
                for owner, component in plugin.components
                if owner is each
            ]
            yield from sorted(found, key=lambda entry: (entry.component.name, entry.plugin))

    def select(self, kind: Kind | str, use: str) -> Selected:
        """The component that ``use`` names: ``name``, ``plugin/name`` or ``module:attr``. A name that several
        plugins provide means the one that the run began with, else that published with the runtime.

        Raises :class:`PluginError` if it is missing, ambiguous, or provided by a plugin with a problem.
        """
        kind = Kind(kind)
        if ":" in use:
            return _unpackaged(kind, use)
        provider, slash, name = use.rpartition("/")
        if slash:
            plugin = self.plugin(provider)
            if not plugin.healthy:
                raise _unusable(kind, use, plugin)
            for owner, component in plugin.components:
                if owner is kind and component.name == name:
                    return _selected(plugin, kind, component)
            names = [component.name for owner, component in plugin.components if owner is kind]
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise PluginError(
                f"plugin {provider!r} provides no {kind} {name!r}{did_you_mean(name, names)} ({has})"
            )
        found = [entry for entry in self.components(kind) if entry.component.name == use]
        if len(found) > 1 and (settled := self._settled(found)) is not None:
            return settled
        if len(found) > 1:
            choices = " or ".join(repr(entry.qualified) for entry in found)
            raise PluginError(
                f"{kind} {use!r} is provided by {len(found)} plugins; name one of: {choices}"
            )
        if not found:
            raise self._missing(kind, use)
        return found[0]

    def meaning(self, kind: Kind, name: str) -> str:
        """The component, qualified, that a name alone means; empty if a run must use the full name of several."""
        found = [entry for entry in self.components(kind) if entry.component.name == name]
        meant = found[0] if len(found) == 1 else self._settled(found) if found else None
        return meant.qualified if meant is not None else ""

    def rivals(self, kind: Kind, use: str) -> list[str]:
        """The other components, qualified, that provide the name ``use``; none if it is qualified itself."""
        named = [e.qualified for e in self.components(kind) if e.component.name == use]
        return [each for each in named if each != self.meaning(kind, use)]

    def _settled(self, found: Sequence[Selected]) -> Selected | None:
        """Which of several components of one name and kind is meant, if that is known."""
        kind, name = found[0].kind, found[0].component.name
        began_with = [e for e in found if e.plugin == self._lock.get(f"{kind}/{name}")]
        ours = [e for e in found if e.distribution == index().components.get(kind, {}).get(name)]
        return next(iter(began_with or ours), None)

    def flags(self, kind: Kind | str, use: str) -> frozenset[str]:
        """The capabilities that the component declares."""
        return self.select(kind, use).component.capabilities

    def validate(
        self, kind: Kind | str, table: ComponentTable, where: str
    ) -> tuple[Selected, BaseModel | None]:
        """Select the component of a table and validate its keys.

        ``where`` is the dotted path of the table, for errors: :class:`ConfigError` with every problem of
        the keys, :class:`PluginError` if the component cannot be selected.
        """
        return self.validate_options(kind, table.use, table.options, where)

    def validate_options(
        self, kind: Kind | str, use: str, options: Mapping[str, Any], where: str
    ) -> tuple[Selected, BaseModel | None]:
        """:meth:`validate` for a table in parts."""
        from pydantic import ValidationError

        from astraflow_core.config.rendering import render, unknown_key

        selected = self.select(kind, use)
        model = selected.config_model()
        if model is None:
            if options:
                raise ConfigError(
                    [unknown_key(f"{where}.{key}", value, ()) for key, value in options.items()]
                )
            return selected, None
        try:
            return selected, model.model_validate(dict(options))
        except ValidationError as error:
            raise ConfigError(render(error, model, where)) from error

    def build(self, kind: Kind | str, table: ComponentTable, context: ComponentContext) -> Any:
        """Validate a table and build its component; :class:`VersionSkew` if the run began with another
        version of what provides it."""
        selected, config = self.validate(kind, table, str(Kind(kind)))
        check_version(selected.distribution, selected.version, context.run.directory)
        return selected.build(config, context)

    def _missing(self, kind: Kind, use: str) -> PluginError:
        broken = [plugin for plugin in self.plugins if not plugin.healthy] + find_unregistered()
        for plugin in broken:
            if plugin.name == use:
                return _unusable(kind, use, plugin)
        names = sorted({entry.component.name for entry in self.components(kind)})
        text = "; ".join([f"no {kind} {use!r} is installed", *self._remedy(kind, use, names)])
        text += f" (installed: {', '.join(names) or 'none'})"
        if broken:
            listed = ", ".join(f"{plugin.name!r} ({plugin.problem})" for plugin in broken)
            text += f"; plugins with problems that may provide it: {listed}"
            text += f"; run `astraflow plugins why {broken[0].name}` for the remedy"
        return PluginError(text)

    def _remedy(self, kind: Kind, use: str, names: list[str]) -> Iterator[str]:
        """What to do about a name: install what provides it, or write it otherwise. Names of distributions are
        never guessed: on an index anyone could own them."""
        published, how = index().components, index().how_to_install
        of_kind = published.get(kind, {})
        if use in of_kind:
            yield f"{of_kind[use]} provides it: {how(of_kind[use])}"
            return
        for other in Kind:
            here = any(entry.component.name == use for entry in self.components(other))
            if other is not kind and (here or use in published.get(other, {})):
                yield f"{use!r} is {_with_article(other)}, not {_with_article(kind)}"
        match = nearest(use, [*names, *(name for name in of_kind if name not in names)])
        if match is not None:
            hint = "" if match in names else f" ({how(of_kind[match])})"
            yield f"did you mean {match!r}?{hint}"


@lru_cache(maxsize=8)
def _discover(
    path: tuple[str, ...], barred: str, disable: tuple[str, ...], only: tuple[str, ...] | None
) -> Catalog:
    return Catalog(find_plugins(disable, only))


def _with_article(kind: Kind) -> str:
    text = kind.value.replace("_", " ")
    return f"{'an' if text[0] in 'ae' else 'a'} {text}"


def _selected(plugin: Plugin, kind: Kind, component: Component) -> Selected:
    return Selected(
        kind, component, plugin.name, plugin.distribution, plugin.version, plugin.metadata
    )


def _unpackaged(kind: Kind, use: str) -> Selected:
    target = Selected(kind, Component(use, use, "unpackaged")).load(use)
    if not callable(target):
        raise PluginError(
            f"{kind} {use!r} is an object of type {type(target).__name__}; "
            "expected a class or a function"
        )
    flags = frozenset(getattr(target, "capabilities", ()))
    unknown = unknown_flags(kind, flags)
    if unknown:
        raise PluginError(f"{kind} {use!r} declares unknown capabilities: {', '.join(unknown)}")
    return Selected(kind, Component(use, use, "unpackaged", capabilities=flags))


def _unusable(kind: Kind, use: str, plugin: Plugin) -> PluginError:
    error = PluginError(
        f"{kind} {use!r}: plugin {plugin.name!r} ({plugin.distribution} {plugin.version}) cannot be used: "
        f"{plugin.problem}"
    )
    error.__cause__ = plugin.error
    return error
