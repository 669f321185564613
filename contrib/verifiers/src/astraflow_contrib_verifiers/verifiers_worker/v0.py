"""Environments of verifiers up to 0.2: a module with ``load_environment``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import verifiers as vf
from openai import AsyncOpenAI
from verifiers.clients import OpenAIChatCompletionsClient

from astraflow_contrib_verifiers.verifiers_worker.kinds import kind_of
from astraflow_contrib_verifiers.verifiers_worker.service import Json, Refusal, Spec, ToldTask

ROLE = "agent"
_ASKED = {"logprobs": True, "extra_body": {"return_token_ids": True}}
"""What the trajectory needs to record tokens."""


class V0Environment:
    """One environment; its dataset is what gives the tasks."""

    def __init__(self, spec: Spec) -> None:
        self.roles = [ROLE]
        self._env = vf.load_environment(spec.environment, **spec.arguments)
        if self._env.requires_group_rollouts:
            raise Refusal(
                "load",
                f"{spec.environment} rewards the rollouts of a group together, which is not available here: each episode is "
                "played and rewarded alone",
            )
        if spec.split == "eval":
            self._rows = self._env.build_eval_dataset()
            if self._rows is None:
                raise Refusal("load", f"{spec.environment} has no evaluation data (eval_dataset)")
        else:
            self._rows = self._env.get_dataset()
        # Without its own limits: the run decides how many episodes run at once.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        self._http = httpx.AsyncClient(timeout=None, limits=limits, trust_env=False)  # noqa: S113 - the episode has a deadline

    def endless(self) -> bool:
        """A dataset has an end."""
        return False

    def tasks(self) -> Iterator[ToldTask]:
        """The rows."""
        return (self.task(index) for index in range(len(self._rows)))

    def task(self, index: int) -> ToldTask:
        """One row."""
        row = dict(self._rows[index])
        return ToldTask(_plain(row.get("prompt")), _plain(row.get("answer")), _plain(row))

    async def play(self, index: int, roles: Mapping[str, Json]) -> Json:
        """One rollout, scored by the environment's rubric."""
        player = roles[ROLE]
        client = OpenAIChatCompletionsClient(
            AsyncOpenAI(
                base_url=player["base_url"], api_key="none", max_retries=0, http_client=self._http
            )
        )
        out = await self._env.run_rollout(
            dict(self._rows[index]), client, player["model"], dict(_ASKED), state_columns=["trajectory"]
        )  # fmt: skip
        if error := out.get("error"):
            kind, reason = _error(error)
            raise Refusal(kind, reason)
        steps = [step["tokens"] for step in out["trajectory"] if step.get("tokens")]
        recorded = [[step["completion_ids"], step["completion_logprobs"]] for step in steps]
        metrics = {**(out.get("metrics") or {}), "truncated": float(bool(out.get("is_truncated")))}
        told = {"reward": out["reward"], "trained": True, "metrics": metrics, "recorded": recorded}
        return {"roles": {ROLE: told}}


def _error(error: Any) -> tuple[str, str]:
    """The kind and the text of what a rollout records."""
    if isinstance(error, Mapping):
        said = error.get("error_chain_str") or error.get("message") or ""
        return kind_of(str(error.get("error"))), f"{error.get('error')}: {said}"
    return kind_of(type(error).__name__), repr(error)


def _plain(value: Any) -> Any:
    """As JSON has it: messages may be models of pydantic."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump(exclude_none=True))
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)
