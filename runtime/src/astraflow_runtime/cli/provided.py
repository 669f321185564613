"""The commands that plugins provide, and their names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from astraflow_core.component import Command, load_attribute
from astraflow_core.errors import PluginError
from astraflow_core.installed.distributions import index
from astraflow_core.suggestions import did_you_mean

if TYPE_CHECKING:
    import argparse

    from astraflow_core.installed.discovery import Plugin


@dataclass(frozen=True, slots=True)
class ProvidedCommand:
    """A command with its provider."""

    command: Command
    plugin: str
    distribution: str
    version: str

    @property
    def qualified(self) -> str:
        """``"plugin/name"``: the unambiguous name of the command."""
        return f"{self.plugin}/{self.command.name}"

    @property
    def ours(self) -> bool:
        """Whether it is part of this project."""
        return index().commands.get(self.command.name) == self.distribution

    def declare(self, parser: argparse.ArgumentParser) -> None:
        """Import the command and let it declare its arguments; :class:`PluginError` names its
        plugin.
        """
        target = self.command.target
        try:
            add_arguments = load_attribute(target)
        except PluginError as error:
            raise PluginError(f"{self._who()} cannot be used: {error}") from error.__cause__
        if not callable(add_arguments):
            raise PluginError(
                f"{self._who()} cannot be used: {target!r} is an object of type {type(add_arguments).__name__}; "
                "expected a function that takes an argparse.ArgumentParser"
            )
        add_arguments(parser)

    def without_function(self) -> PluginError:
        """The error about arguments that name no function to call."""
        return PluginError(
            f"{self._who()} cannot be used: {self.command.target!r} set no function; it "
            "must call parser.set_defaults(command=…)"
        )

    def _who(self) -> str:
        return (
            f"command {self.command.name!r} of plugin {self.plugin!r} "
            f"({self.distribution} {self.version})"
        )


def provided_by(plugins: Iterable[Plugin]) -> dict[str, ProvidedCommand]:
    """Name → command. A name that several plugins provide means the command of this project, or
    nothing if there is none; the others have their qualified names.
    """
    found: dict[str, list[ProvidedCommand]] = {}
    for plugin in plugins:
        for command in plugin.commands if plugin.healthy else ():
            entry = ProvidedCommand(command, plugin.name, plugin.distribution, plugin.version)
            found.setdefault(command.name, []).append(entry)
    named: dict[str, ProvidedCommand] = {}
    for name, entries in sorted(found.items()):
        meant = entries[0] if len(entries) == 1 else next((e for e in entries if e.ours), None)
        if meant is not None:
            named[name] = meant
        named |= {entry.qualified: entry for entry in entries}
    return named


def select_command(plugins: Iterable[Plugin], use: str) -> ProvidedCommand:
    """The command that ``use`` names, ``name`` or ``plugin/name``. Raises :class:`PluginError` if it is missing,
    ambiguous, or provided by a plugin with a problem."""
    plugins = tuple(plugins)
    named = provided_by(plugins)
    if use in named:
        return named[use]
    rivals = [name for name, entry in named.items() if entry.command.name == use]
    if rivals:
        choices = " or ".join(f"`astraflow {name}`" for name in rivals)
        raise PluginError(
            f"command {use!r} is provided by {len(rivals)} plugins; name one of: {choices}"
        )
    raise _missing(plugins, named, use)


def _missing(
    plugins: tuple[Plugin, ...], named: dict[str, ProvidedCommand], use: str
) -> PluginError:
    distribution = index().commands.get(use)
    broken = [plugin for plugin in plugins if not plugin.healthy]
    for plugin in broken:
        if plugin.distribution == distribution or plugin.name == use.partition("/")[0]:
            error = PluginError(
                f"command {use!r}: plugin {plugin.name!r} ({plugin.distribution} {plugin.version}) cannot be used: "
                f"{plugin.problem}"
            )
            error.__cause__ = plugin.error
            return error
    if distribution is not None:
        return PluginError(
            f"command {use!r} is not installed; {distribution} provides it: {index().how_to_install(distribution)}"
        )
    known = [name for name in (*named, *index().commands) if "/" not in name]
    hint = did_you_mean(use, known) or ";"
    text = f"no command {use!r}{hint} `astraflow --help` lists them"
    if broken:
        listed = ", ".join(f"{plugin.name!r} ({plugin.problem})" for plugin in broken)
        text += f"; plugins with problems that may provide it: {listed}"
    return PluginError(text)
