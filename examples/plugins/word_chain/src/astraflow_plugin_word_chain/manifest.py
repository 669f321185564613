"""What this distribution provides: strings only, so that listing it imports nothing else."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_environments() -> list[Component]:
    """The environment ``word_chain``."""
    return [
        Component(
            name="word_chain",
            target="astraflow_plugin_word_chain.environment:WordChain",
            config="astraflow_plugin_word_chain.environment:WordChainConfig",
            summary="words that begin with the last letter of the one before",
            capabilities=frozenset({"deterministic"}),
        )
    ]
