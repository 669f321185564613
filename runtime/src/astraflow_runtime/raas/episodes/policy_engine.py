"""A policy for an episode: its engines with the sampling parameters, the pin and the session of a
task.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from astraflow_core.errors import UserError, WorkflowError
from astraflow_core.protocols.workflow import Messages, PolicyEngine, Tokenizer, Tools
from astraflow_core.types import Completion, GenerateRequest, GenerateResult, Images, Sampling
from astraflow_core.types import Sequence as TokenSequence
from astraflow_runtime.raas.engines.replicas import Replicas
from astraflow_runtime.raas.episodes.routing_log import RoutingLog
from astraflow_runtime.raas.episodes.spans import record
from astraflow_runtime.raas.episodes.turns import Turns
from astraflow_wire.experts.layers import ExpertLayers
from astraflow_wire.images.model import ImageModel
from astraflow_wire.images.parts import has_images, split_images
from astraflow_wire.images.placing import expanded


class FatalTaskError(WorkflowError):
    """A task that fails in every attempt."""


class RenderingTokenizer(Tokenizer, Protocol):
    """A tokenizer with a chat template."""

    def render(
        self, messages: Messages | str, add_generation_prompt: bool = True
    ) -> npt.NDArray[np.int32]:
        """Token ids of chat messages; a string is encoded as it is."""

    def chat_text(self, messages: Messages, add_generation_prompt: bool, tools: Tools) -> str:
        """The text of chat messages."""


@dataclass
class PolicyHandle:
    """What all episodes of a policy share: its engines, its tokenizer, counters. ``experts``, if their choices are
    recorded: those of its model. ``images``, if the policy has ``images = true``: how its model reads them."""

    replicas: Replicas
    tokenizer: RenderingTokenizer
    frozen: bool = False
    experts: ExpertLayers | None = None
    images: ImageModel | None = None
    tokens_generated: int = 0
    prompt_tokens: int = 0
    numbers: itertools.count[int] = field(default_factory=itertools.count)


class TaskPolicyEngine:
    """Implements :class:`astraflow_core.protocols.workflow.PolicyEngine` for the episodes of one task."""

    def __init__(
        self,
        handle: PolicyHandle,
        sampling: Sampling,
        pinned: int | None = None,
        session: str = "",
        turns: Turns | None = None,
        routing: RoutingLog | None = None,
        images: Images = (),
    ) -> None:
        self._handle = handle
        self._sampling = sampling
        self._pinned = pinned
        self._session = session
        self._turns = turns or Turns()
        self.routing = routing
        self._images = images

    @property
    def policy(self) -> str:
        """Name of the policy."""
        return self._handle.replicas.policy

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the policy's model."""
        return self._handle.tokenizer

    @property
    def version(self) -> int:
        """The version served now; -1 while there is none."""
        version = self._handle.replicas.serving
        return -1 if version is None else version

    @property
    def context_length(self) -> int:
        """The most tokens, prompt and completion together, of the engines that run."""
        return self._handle.replicas.context_length

    @property
    def sampling(self) -> Sampling:
        """The sampling parameters of this task."""
        return self._sampling

    def render(
        self, messages: Messages | str, add_generation_prompt: bool = True
    ) -> npt.NDArray[np.int32]:
        """Token ids of chat messages by the model's template; a string is encoded as it is. :class:`UserError` for messages
        with images, which a template would drop or leave without their pixels."""
        if not isinstance(messages, str) and has_images(messages):
            raise UserError(
                f"policy {self.policy!r}: the messages have images, and this workflow renders text only; use 'single_turn', "
                "'tools' or 'environment', or have it call render_images and with_images (docs/images.md)"
            )
        return self._handle.tokenizer.render(messages, add_generation_prompt)

    def render_images(
        self, messages: Messages, add_generation_prompt: bool = True
    ) -> tuple[npt.NDArray[np.int32], Images]:
        """Token ids of chat messages with images, and the images in their places."""
        try:
            plain, files = split_images(messages)
        except ValueError as error:
            raise UserError(f"policy {self.policy!r}: {error}") from error
        self._check_reads(files)
        return self.expand_images(self.render(plain, add_generation_prompt), files)

    def expand_images(
        self, tokens: npt.NDArray[np.int32], files: Sequence[bytes]
    ) -> tuple[npt.NDArray[np.int32], Images]:
        """The tokens with as many placeholders for each image as the model reads, and the images in their places."""
        self._check_reads(files)
        if (model := self._handle.images) is None:
            return tokens, ()
        try:
            return expanded(tokens, files, model)
        except ValueError as error:
            raise UserError(f"policy {self.policy!r}: {error}") from error

    def _check_reads(self, files: Sequence[bytes]) -> None:
        if files and self._handle.images is None:
            raise UserError(
                f"policy {self.policy!r}: the messages have images, and the policy reads none: set images = true in "
                f"[policies.{self.policy}], with a model, an engine and a trainer that have them"
            )

    def with_images(self, images: Images) -> PolicyEngine:
        """The same policy, which sees ``images`` in all tokens that it is given from now on."""
        return TaskPolicyEngine(
            self._handle,
            self._sampling,
            self._pinned,
            self._session,
            self._turns,
            self.routing,
            images,
        )

    def chat_text(
        self, messages: Messages, add_generation_prompt: bool = True, tools: Tools = ()
    ) -> str:
        """The text of chat messages by the model's template."""
        return self._handle.tokenizer.chat_text(messages, add_generation_prompt, tools)

    async def generate(
        self, prompt: npt.NDArray[np.int32], sampling: Sampling | None = None
    ) -> GenerateResult:
        """Sample a continuation; a result that a pause cut short is continued from its tokens."""
        sampling = sampling or self._sampling
        prompt = np.asarray(prompt, dtype=np.int32)
        await self._handle.replicas.available()
        self._check_length(len(prompt), sampling.max_tokens)
        result = await self._request(prompt, sampling)
        await self._turns()
        if result.finish_reason != "abort":
            return result
        parts = [result]
        while parts[-1].finish_reason == "abort":
            done = sum(len(part.tokens) for part in parts)
            if done >= sampling.max_tokens:
                return _joined(parts, "length")
            context = np.concatenate([prompt, *(part.tokens for part in parts)])
            parts.append(
                await self._request(
                    context, replace(sampling, max_tokens=sampling.max_tokens - done)
                )
            )
            whole = _cut_at_stop(
                _joined(parts, parts[-1].finish_reason), done, sampling.stop_sequences
            )
            if whole is not None:
                return whole
        return _joined(parts, parts[-1].finish_reason)

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """The log-prob of each token given those before it, by the weights served now."""
        tokens = np.asarray(tokens, dtype=np.int32)
        self._check_length(len(tokens), 0)
        scored = await self._handle.replicas.score(tokens, self._seen(tokens))
        await self._turns()
        return scored

    async def _request(self, prompt: npt.NDArray[np.int32], sampling: Sampling) -> GenerateResult:
        handle = self._handle
        request = GenerateRequest(
            id=str(next(handle.numbers)),
            prompt=prompt,
            sampling=sampling,
            session=self._session,
            pinned_version=self._pinned,
            routing=self.routing is not None,
            images=self._seen(prompt),
        )
        handle.prompt_tokens += len(prompt)
        began = time.monotonic()
        result = await handle.replicas.generate(request)
        record("generate", self.policy, began)
        handle.tokens_generated += len(result.tokens)
        if self.routing is not None:
            self.routing.add(prompt, result)
        return result

    def _seen(self, tokens: npt.NDArray[np.int32]) -> Images:
        """The images that are whole in ``tokens``."""
        return tuple(image for image in self._images if image.end <= len(tokens))

    def _check_length(self, prompt: int, max_tokens: int) -> None:
        context = self._handle.replicas.context_length
        if prompt < 1:
            raise FatalTaskError(f"policy {self.policy!r} received an empty prompt")
        if prompt + max_tokens > context:
            raise FatalTaskError(
                f"a prompt of {prompt} tokens + max_tokens {max_tokens} = {prompt + max_tokens} exceeds the "
                f"context of policy {self.policy!r}, {context} tokens; lower [sampling] max_tokens or remove long "
                "prompts"
            )

    def sequence(
        self, prompt: npt.NDArray[np.int32], result: GenerateResult, reward: float | None = None
    ) -> TokenSequence:
        """Prompt and sampled tokens as a sequence whose sampled tokens are trained."""
        start, total = len(prompt), len(prompt) + len(result.tokens)
        tokens = np.empty(total, np.int32)
        tokens[:start] = prompt
        tokens[start:] = result.tokens
        mask = np.zeros(total, np.bool_)
        mask[start:] = True
        logprobs = np.zeros(total, np.float32)
        logprobs[start:] = result.logprobs
        versions = np.full(total, -1, np.int32)
        versions[start:] = result.versions
        return TokenSequence(
            self.policy, tokens, mask, logprobs, versions, reward, images=self._seen(prompt)
        )

    def completion(self, result: GenerateResult) -> Completion:
        """The decoded sampled part, for rewards."""
        text = self._handle.tokenizer.decode(result.tokens)
        return Completion(self.policy, text, result.tokens, result.finish_reason)

    def session(self) -> PolicyEngine:
        """The same policy, with requests that share a session."""
        name = f"session-{next(self._handle.numbers)}"
        return TaskPolicyEngine(
            self._handle,
            self._sampling,
            self._pinned,
            name,
            self._turns,
            self.routing,
            self._images,
        )


def _joined(parts: Sequence[GenerateResult], reason: str) -> GenerateResult:
    return GenerateResult(
        parts[0].id,
        np.concatenate([part.tokens for part in parts]),
        np.concatenate([part.logprobs for part in parts]),
        np.concatenate([part.versions for part in parts]),
        reason,  # type: ignore[arg-type]
    )


def _cut_at_stop(
    result: GenerateResult, seam: int, stops: tuple[tuple[int, ...], ...]
) -> GenerateResult | None:
    """The result up to a stop sequence that spans ``seam``, which the engine could not detect."""
    tokens = result.tokens.tolist()
    ends = [
        start + len(stop)
        for stop in stops
        for start in range(max(0, seam - len(stop) + 1), seam)
        if tuple(tokens[start : start + len(stop)]) == stop
    ]
    if not ends:
        return None
    end = min(ends)
    return GenerateResult(
        result.id, result.tokens[:end], result.logprobs[:end], result.versions[:end], "stop"
    )
