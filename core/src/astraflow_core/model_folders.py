"""Turns the model references of a run into local folders, before any process of it starts."""

from __future__ import annotations

from astraflow_core.config.environments import cache_folder
from astraflow_core.config.models import RunConfig
from astraflow_core.hooks import Hooks


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
