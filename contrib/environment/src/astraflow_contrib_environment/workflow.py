"""One policy plays an environment."""

from __future__ import annotations

from collections.abc import Mapping

from astraflow_contrib_environment.config import EnvironmentConfig
from astraflow_contrib_environment.playing import Play
from astraflow_core.errors import PreflightError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.seeds import derive_seed
from astraflow_core.types import ComponentContext, Prompt, Trajectory
from astraflow_environments.pool import EnvironmentPool
from astraflow_gateway.conversation import Conversation, Episodes
from astraflow_gateway.episode import Budget


class EnvironmentWorkflow:
    """Each episode is one of the environment ``[workflow.environment]``, with the prompt as its task. What a turn earned is
    the reward of that turn, and the sum that of the trajectory."""

    def __init__(self, config: EnvironmentConfig, context: ComponentContext) -> None:
        policies = context.run.policies
        if config.policy is None and len(policies) != 1:
            raise PreflightError(
                f"workflow 'environment' serves one policy and the run has {', '.join(policies)}: say which in "
                "workflow.policy, or use the workflow 'team'"
            )
        if config.policy is not None and config.policy not in policies:
            raise PreflightError(
                f"workflow 'environment': policy {config.policy!r} is not in the run, which has {', '.join(policies)}"
            )
        self._policy, self._config, self._seed = (
            config.policy or policies[0],
            config,
            context.run.seed,
        )
        self._episodes = Episodes(context.run, Budget(config.max_turns, config.max_tokens))
        self._pool = EnvironmentPool(config, context)
        if "multi_role" in self._pool.capabilities:
            raise PreflightError(
                f"workflow 'environment': {self._pool.name!r} has several roles; use the workflow 'team'"
            )

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode. The episodes of a group have the same seed."""
        episode = self._episodes.begin(engines)
        play = Play(lambda _: Conversation(episode, self._policy), self._config.discount)
        async with self._pool.episode() as environment:
            await play.play(environment, prompt, derive_seed(self._seed, prompt.id))
        earned = {self._policy: play.rewards.get("", 0.0)}
        return Trajectory(
            tuple(episode.sequences()),
            tuple(episode.completions),
            earned if self._config.rewarded_by == "environment" else {},
            {**episode.metrics(), **play.metrics},
        )
