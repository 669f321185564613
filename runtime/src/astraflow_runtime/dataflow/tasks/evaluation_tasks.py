"""The prompts of an evaluation and their sampling parameters, for runs and for the command
``eval``.
"""

from __future__ import annotations

from pathlib import Path

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.config.load import component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.errors import PromptError
from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_wire.messages import SamplingMessage

ROLE = "dataflow"
"""Sources get the seed of this role in every process, so that their prompts are the same."""


def build_evaluation_set(
    config: RunConfig, directory: Path, token: str, catalog: Catalog, name: str
) -> PromptSource:
    """The prompts of ``[eval.sets.NAME]``; :class:`PromptError` if there are none."""
    context = component_context(config, directory, ROLE, "", f"eval-{name}", token)
    source: PromptSource = catalog.build(Kind.PROMPT_SOURCE, config.eval.sets[name], context)
    if len(source) < 1:
        raise PromptError(f"[eval.sets.{name}] has no prompts; expected at least one")
    return source


def evaluation_sampling(config: RunConfig) -> SamplingMessage:
    """The sampling parameters of evaluations: their own temperature, all tokens."""
    return SamplingMessage(
        max_tokens=config.sampling.max_tokens,
        temperature=config.eval.temperature,
        stop=list(config.sampling.stop),
    )
