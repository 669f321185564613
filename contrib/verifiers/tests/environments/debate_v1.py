# mypy: allow-subclassing-any
"""An environment of verifiers 0.4 with two roles: one answers, the other judges."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["DebateEnv", "DebateTaskset"]


class DebateTask(vf.Task[vf.TaskData]):
    pass


class DebateTaskset(vf.Taskset[DebateTask, vf.TasksetConfig]):
    def load(self) -> Iterator[DebateTask]:
        for topic in ("doors", "keys"):
            yield DebateTask(vf.TaskData(prompt=f"Say something of {topic}."), self.config.task)


class DebateConfig(vf.EnvConfig):
    speaker: vf.AgentConfig = vf.AgentConfig()
    critic: vf.AgentConfig = vf.AgentConfig()


class DebateEnv(vf.Env[DebateConfig]):
    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        async with agents.speaker.interaction(task) as speaking:
            first = await speaking.turn()
            asked = task.with_data(prompt=f"Is this good: {first.last_reply}")
            judged = await agents.critic.run(asked)
            await speaking.turn(f"The critic says: {judged.last_reply}")

    async def finalize(self, task: vf.Task, episode: vf.Episode) -> None:
        for trace in episode.traces:
            good = 1.0 if trace.agent.name == "speaker" else -1.0
            trace.record_reward("won", good)
