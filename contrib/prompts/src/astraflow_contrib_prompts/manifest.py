"""What this distribution provides."""

from __future__ import annotations

from astraflow_core.component import Component
from astraflow_core.hookspecs import hookimpl

ASTRAFLOW_API = (1, 0)


@hookimpl
def astraflow_prompt_sources() -> list[Component]:
    """The prompt sources."""
    return [
        Component(
            name="jsonl",
            target="astraflow_contrib_prompts.jsonl:JsonLines",
            config="astraflow_contrib_prompts.config:JsonLinesConfig",
            summary="a file of JSON lines with a prompt and an answer each",
        ),
        Component(
            name="digits",
            target="astraflow_contrib_prompts.digits:Digits",
            config="astraflow_contrib_prompts.config:DigitsConfig",
            summary="complement, copy, reverse or sort n digits; held-out prompts kept apart",
            capabilities=frozenset({"generated"}),
        ),
    ]
