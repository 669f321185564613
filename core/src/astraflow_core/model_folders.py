"""Turns the model references of a run into local folders, before any process of it starts."""

from __future__ import annotations

import os
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_core.hooks import Hooks


def cache_folder() -> Path:
    """Where fetched and converted models are kept: ``ASTRAFLOW_CACHE``, else the user's cache folder."""
    given = os.environ.get("ASTRAFLOW_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser().absolute() / "astraflow"


def resolve_models(config: RunConfig, hooks: Hooks) -> RunConfig:
    """The config with every ``policies.NAME.model`` a local Hugging Face folder; each reference is
    resolved once. Raises :class:`astraflow_core.errors.PreflightError` naming what is missing."""
    folders: dict[str, str] = {}
    policies = {}
    for name, policy in config.policies.items():
        if policy.model not in folders:
            found = hooks.resolve_model(policy.model, config.run.seed, cache_folder())
            folders[policy.model] = str(found)
        policies[name] = policy.model_copy(update={"model": folders[policy.model]})
    return config.model_copy(update={"policies": policies})
