"""Turns model references into local folders, by the plugins that resolve them."""

from __future__ import annotations

import re
from pathlib import Path

from astraflow_core.catalog import Catalog
from astraflow_core.errors import PluginError, PreflightError
from astraflow_core.installed.discovery import plugin_manager
from astraflow_core.types import ResolvedModel
from astraflow_runtime.models.files import check_config, check_files

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")  # at least two letters: not a drive

_OF_A_HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""``owner/name``, as a model hub names models; a relative path of two parts looks the same."""


class ModelResolver:
    """Asks every healthy plugin of a catalog that resolves models."""

    def __init__(self, catalog: Catalog) -> None:
        self._resolvers = tuple(
            plugin
            for plugin in catalog.plugins
            if plugin.healthy and "astraflow_resolve_model" in plugin.hooks
        )

    def resolve_model(self, reference: str, seed: int, cache: Path) -> Path:
        """The Hugging Face folder of a model reference.

        A path must be a folder with a sound ``config.json``. A reference with a scheme
        (``pypi:name``) goes to every healthy plugin that resolves models, the first answer wins. Raises
        :class:`PreflightError` naming what is missing.
        """
        return self.pinned_model(reference, seed, cache).folder

    def pinned_model(self, reference: str, seed: int, cache: Path) -> ResolvedModel:
        """The same, with a reference that is pinned to its current meaning."""
        scheme = _SCHEME.match(reference)
        if scheme is None:
            folder = _checked(Path(reference).expanduser(), f"model {reference!r}")
            return ResolvedModel(folder, reference)
        try:
            cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise PreflightError(
                f"model {reference!r}: the cache of models {str(cache)!r} cannot be made: {error.strerror}; "
                "set ASTRAFLOW_CACHE to a writable folder"
            ) from error
        found = self._asked(reference, seed, cache, fetch=True)
        if found is None:
            asked = ", ".join(plugin.name for plugin in self._resolvers) or "none is installed"
            raise PreflightError(
                f"model {reference!r}: no plugin handles the scheme '{scheme[1]}:' (plugins that resolve "
                f"models: {asked}); install one that does, or give a local Hugging Face folder"
            )
        return found

    def _asked(
        self, reference: str, seed: int, cache: Path, *, fetch: bool
    ) -> ResolvedModel | None:
        """The answer of the plugins; only of those that can do without, if they are not to ``fetch``."""
        manager = plugin_manager()
        for plugin in self._resolvers:
            manager.register(plugin.module, name=plugin.name)
        hook = manager.hook.astraflow_resolve_model
        fetching = [each for each in hook.get_hookimpls() if "fetch" not in each.argnames]
        if not fetch:
            removed = [each.plugin for each in fetching]
            hook = manager.subset_hook_caller("astraflow_resolve_model", removed)
        answer = hook(reference=reference, seed=seed, cache=cache, fetch=fetch)
        if answer is None:
            return None
        if isinstance(answer, Path):
            answer = ResolvedModel(answer, reference)
        if not isinstance(answer, ResolvedModel):
            raise PluginError(
                f"model {reference!r}: astraflow_resolve_model of a plugin ({', '.join(p.name for p in self._resolvers)}) "
                f"returned {answer!r}; expected a pathlib.Path, a ResolvedModel or None"
            )
        who = f"model {reference!r}, resolved to {str(answer.folder)!r}"
        return ResolvedModel(_checked(answer.folder, who), answer.pinned)

    def at_hand(self, reference: str, seed: int, cache: Path) -> Path | None:
        """As :meth:`resolve_model` if that needs no network, and the plugin of the reference knows it; ``None`` otherwise."""
        if _SCHEME.match(reference) is None:
            return _checked(Path(reference).expanduser(), f"model {reference!r}")
        found = self._asked(reference, seed, cache, fetch=False)
        return None if found is None else found.folder

    def check_model(self, reference: str, seed: int, cache: Path, *, weights: bool) -> str:
        """Check what :meth:`resolve_model` would do, without fetching anything; raises if it would certainly fail. The files
        of what is :meth:`at_hand` are checked as before a run (:func:`astraflow_runtime.models.files.check_files`)."""
        folder = self.at_hand(reference, seed, cache)
        scheme = _SCHEME.match(reference)
        if folder is not None:
            check_files(folder, f"model {reference!r}", weights=weights)
            place = "" if scheme is None else f": what {reference!r} means"
            return f"{folder} is a model folder{place}"
        assert scheme is not None, "a folder is at hand"
        names = ", ".join(plugin.name for plugin in self._resolvers)
        if not names:
            raise PreflightError(
                f"model {reference!r}: no installed plugin resolves models, so none handles the scheme "
                f"'{scheme[1]}:'"
            )
        return f"{reference!r} is resolved when the run starts by one of the plugins {names}"


def _checked(folder: Path, who: str) -> Path:
    if not folder.exists():
        raise PreflightError(
            f"{who}: there is no folder {str(folder.absolute())!r}; {_how_to_get(folder)}"
        )
    if not folder.is_dir():
        raise PreflightError(
            f"{who}: is a file; give the Hugging Face folder that holds config.json"
        )
    if not (folder / "config.json").is_file():
        raise PreflightError(f"{who}: the folder {str(folder.absolute())!r} has no config.json")
    check_config(folder, who)
    return folder.absolute()


def _how_to_get(folder: Path) -> str:
    name = str(folder)
    if _OF_A_HUB.fullmatch(name):
        local = f"models/{folder.name.lower()}"
        return (
            f"to take it from the Hugging Face hub, set model = 'hf:{name}' (pip install astraflow-contrib-hf-models), or "
            f"`pip install huggingface_hub`, `hf download {name} --local-dir {local}`, and set model = {local!r}"
        )
    return (
        "give a local Hugging Face folder, or a reference with a scheme, such as 'pypi:NAME', that an installed "
        "plugin resolves"
    )
