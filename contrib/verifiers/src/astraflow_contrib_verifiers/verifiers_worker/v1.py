"""Environments of verifiers 0.4: a taskset, with an environment of several roles or without."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.utils import loaders

from astraflow_contrib_verifiers.verifiers_worker.kinds import kind_of
from astraflow_contrib_verifiers.verifiers_worker.service import Json, Refusal, Spec, ToldTask

HARNESS = "astraflow_chat_harness"
"""Plays a role in this process, where neither the environment nor its configuration names another harness."""
_FOREIGN = "bash"
"""What verifiers takes for such a role: a program that is started by uv."""


class V1Environment:
    """One environment. Its tasks are read as far as they are asked for."""

    def __init__(self, spec: Spec) -> None:
        if spec.split != "train":
            raise Refusal(
                "load",
                "verifiers 0.4 has no splits; name the evaluation tasks in arguments, such as arguments = { taskset = "
                '{ split = "test" } }, or take others by skip and size',
            )
        self._config = _config(spec)
        self._env = loaders.load_environment(self._config)
        self.roles = list(_roles(self._config))
        self._read: list[vf.Task] = []
        self._coming = iter(self._env.taskset)

    def endless(self) -> bool:
        """As the taskset says."""
        return not self._env.taskset.bounded

    def tasks(self) -> Iterator[ToldTask]:
        """In the order in which they are loaded."""
        index = 0
        while self._has(index):
            yield _as_row(self._read[index])
            index += 1

    def task(self, index: int) -> ToldTask:
        """One of them."""
        return _as_row(self._task(index))

    def _task(self, index: int) -> vf.Task:
        if not self._has(index):
            raise Refusal("other_task", f"there is no task {index}; there are {len(self._read)}")
        return self._read[index]

    def _has(self, index: int) -> bool:
        while len(self._read) <= index:
            task = next(self._coming, None)
            if task is None:
                return False
            self._read.append(task)
        return True

    async def play(self, index: int, roles: Mapping[str, Json]) -> Json:
        """One episode of the environment, with its own resources: its clients are closed with them."""
        task = self._task(index)
        players = {
            name: role.model_copy(update=_player(role, roles[name]))
            for name, role in _roles(self._config).items()
        }
        env = copy.copy(self._env)
        env.config = self._config.model_copy(update=players)
        first = next(iter(players.values()))
        async with env.serving():
            episode = await env.run_episode(task, vf.ModelContext(first.model, first.client))
        if not env.complete(episode):
            raise _refusal(episode)
        told = {
            name: _outcome(traces, roles[name]["tokenizer"] is not None)
            for name, traces in episode.by_agent.items()
        }
        return {"roles": told}


def _config(spec: Spec) -> vf.EnvConfig:
    """What ``arguments`` leave open of a role is set so that it plays here."""
    given = copy.deepcopy(dict(spec.arguments))
    given["taskset"] = {**given.get("taskset", {}), "id": spec.environment}
    kind = loaders.env_config_type(spec.environment, given.get("id", ""))
    own_harness = loaders.default_harness_id(spec.environment) != _FOREIGN
    for name, field in kind.model_fields.items():
        default = field.default
        if not isinstance(default, vf.AgentConfig):
            continue
        role = dict(given.get(name, {}))
        if default.harness is None and not own_harness:
            role.setdefault("harness", {"id": HARNESS})
        if "runtime" not in default.model_fields_set:
            role.setdefault("runtime", {"type": "subprocess"})
        given[name] = role
    given.setdefault("interception", {"type": "server"})
    return loaders.resolve_env_config(given)


def _roles(config: vf.EnvConfig) -> dict[str, vf.AgentConfig]:
    return {name: value for name, value in config if isinstance(value, vf.AgentConfig)}


def _player(role: vf.AgentConfig, player: Json) -> Json:
    """The player of the role; one that has its own endpoint keeps it, unless the run gives it a policy."""
    if role.client is not None and not player["named"]:
        return {}
    if player["tokenizer"] is None:
        client: Any = vf.EvalClientConfig(base_url=player["base_url"], api_key_var="")
    else:
        renderer = player["renderer"] and {"name": player["renderer"]}
        client = vf.TrainClientConfig(
            base_url=player["base_url"],
            api_key_var="",
            renderer=renderer,
            renderer_model_name=player["tokenizer"],
        )
    return {"model": player["model"], "client": client}


def _as_row(task: vf.Task) -> ToldTask:
    data = task.data.model_dump(mode="json")
    return ToldTask(data.get("prompt"), data.get("answer"), data)


def _refusal(episode: vf.Episode) -> Refusal:
    """The first error of an episode that did not succeed."""
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
    if not errors:
        return Refusal(
            "incomplete", "the environment calls the episode incomplete, and names no error"
        )
    return Refusal(kind_of(errors[0].type), f"{errors[0].type}: {errors[0].message}")


def _outcome(traces: Sequence[vf.Trace], has_tokens: bool) -> Json:
    """What the runs of a role came to: means over them."""
    figures: dict[str, list[float]] = {}
    for trace in traces:
        rewards = {name: each.value for name, each in trace.rewards.items() if each is not None}
        own = {name: each for name, each in trace.metrics.items() if each is not None}
        flags = {"turns": float(trace.num_turns), "truncated": float(trace.is_truncated)}
        for name, value in {**flags, **rewards, **own}.items():
            figures.setdefault(name, []).append(float(value))
    nodes = [node for trace in traces for node in trace.nodes if node.sampled and node.token_ids]
    return {
        "reward": sum(trace.reward for trace in traces) / len(traces),
        "trained": any(trace.agent.trainable for trace in traces),
        "metrics": {name: sum(values) / len(values) for name, values in figures.items()},
        "recorded": [[_sampled(node), list(node.logprobs)] for node in nodes]
        if has_tokens
        else None,
    }


def _sampled(node: vf.MessageNode) -> list[int]:
    return [token for token, sampled in zip(node.token_ids, node.mask, strict=True) if sampled]
