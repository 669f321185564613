"""The episode: encode the prompt, sample once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow_contrib_single_turn.config import SingleTurnConfig
from astraflow_core.errors import PreflightError, WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import ComponentContext, Images, Prompt, Trajectory

_CACHED = 512
Rendered = tuple[npt.NDArray[np.int32], Images]


class SingleTurn:
    """One completion of ``prompt.data["prompt"]``: text is encoded as it is, or with ``chat`` rendered as
    a user's message; a list of messages, which may have images, is always rendered. An aborted completion rejects the sample."""

    def __init__(self, config: SingleTurnConfig, context: ComponentContext) -> None:
        policies = context.run.policies
        if config.policy is None and len(policies) != 1:
            raise PreflightError(
                f"workflow 'single_turn' serves one policy and the run has {', '.join(policies)}: "
                "say which in workflow.policy"
            )
        if config.policy is not None and config.policy not in policies:
            raise PreflightError(
                f"workflow 'single_turn': policy {config.policy!r} is not in the run, "
                f"which has {', '.join(policies)}"
            )
        self._policy = config.policy or policies[0]
        self._chat, self._system = config.chat, config.system
        self._rendered: dict[str, tuple[Any, Rendered]] = {}

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode."""
        engine = engines[self._policy]
        tokens, images = self._prompt(engine, prompt)
        if images:
            engine = engine.with_images(images)
        result = await engine.generate(tokens)
        if result.finish_reason == "abort":
            return None
        return Trajectory((engine.sequence(tokens, result),), (engine.completion(result),))

    def _prompt(self, engine: PolicyEngine, prompt: Prompt) -> Rendered:
        """Encoded once per group. An id may mean another prompt in another set, so the content counts."""
        content = prompt.data.get("prompt")
        known = self._rendered.get(prompt.id)
        if known is not None and (known[0] is content or known[0] == content):
            return known[1]
        encoded = self._encode(engine, prompt.id, content)
        if len(self._rendered) >= _CACHED:
            del self._rendered[next(iter(self._rendered))]
        self._rendered[prompt.id] = (content, encoded)
        return encoded

    def _encode(self, engine: PolicyEngine, prompt_id: str, content: Any) -> Rendered:
        if not isinstance(content, (str, list)) or not content:
            raise WorkflowError(
                f"prompt {prompt_id!r}: workflow 'single_turn' expects data['prompt'] to be text or a "
                f"list of messages, got {content!r:.80}"
            )
        if isinstance(content, str):
            if not self._chat:
                return engine.tokenizer.encode(content), ()
            content = [{"role": "user", "content": content}]
        if self._system and content[0].get("role") != "system":
            content = [{"role": "system", "content": self._system}, *content]
        if any(isinstance(message.get("content"), list) for message in content):
            return engine.render_images(content)
        return engine.render(content), ()
