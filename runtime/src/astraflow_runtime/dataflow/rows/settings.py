"""The configuration of a policy's batches."""

from __future__ import annotations

from dataclasses import dataclass

from astraflow_core.config.models import RunConfig


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The configuration of a policy's batches. ``keeps_batches``: batches since the last checkpoint
    are kept for a restarted trainer. ``pass_threshold``: the reward of an episode that passes.
    """

    batch_sequences: int
    publish_every: int
    steps: int
    max_staleness: int
    temperature: float
    keeps_batches: bool = False
    pass_threshold: float = 1.0

    @classmethod
    def of(cls, config: RunConfig, policy: str) -> StreamSettings:
        """Those of a policy of a run."""
        table, temperature = config.policies[policy], config.sampling.temperature
        return cls(
            batch_sequences=table.batch_sequences,
            publish_every=table.publish_every,
            steps=config.run.steps,
            max_staleness=config.run.max_staleness,
            temperature=temperature if temperature > 0 else 1.0,
            keeps_batches=config.checkpoint.every > 0,
            pass_threshold=config.eval.pass_threshold,
        )
