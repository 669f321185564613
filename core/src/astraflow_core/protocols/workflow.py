"""Workflow: turns a prompt into a trajectory by querying the policies of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from astraflow_core.types import Completion, GenerateResult, Images, Prompt, Sampling, Trajectory
from astraflow_core.types import Sequence as TokenSequence

Messages = Sequence[Mapping[str, Any]]
Tools = Sequence[Mapping[str, Any]]
"""Tools that a model may call, each ``{"type": "function", "function": {"name", "description", "parameters"}}``."""


class Tokenizer(Protocol):
    """The tokenizer of a policy's model."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence."""

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Texts that :meth:`encode` makes one token of, which only a template may write, such as the end of a message."""

    @property
    def fingerprint(self) -> str:
        """Equal for tokenizers whose token ids mean the same, so that one model can read the tokens of another."""

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Token ids ``[T]``, no special tokens added."""

    def decode(self, tokens: npt.NDArray[np.int32], skip_special: bool = True) -> str:
        """Text of token ids."""


class PolicyEngine(Protocol):
    """One policy as an episode sees it. Token ids go in and come out; the tokenizer converts text."""

    @property
    def policy(self) -> str:
        """Name of the policy."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the policy's model."""

    @property
    def version(self) -> int:
        """Version served now; it may change between two tokens."""

    @property
    def context_length(self) -> int:
        """The maximum number of tokens of a sequence, prompt and completion together."""

    @property
    def sampling(self) -> Sampling:
        """Sampling parameters of this task (training or evaluation), to derive variations from."""

    def render(
        self, messages: Messages | str, add_generation_prompt: bool = True
    ) -> npt.NDArray[np.int32]:
        """Token ids of chat messages by the model's template (quoted special tokens stay text), or of a string as it is."""

    def render_images(
        self, messages: Messages, add_generation_prompt: bool = True
    ) -> tuple[npt.NDArray[np.int32], Images]:
        """As :meth:`render`, for messages with images: content may be a list of parts, ``{"type": "text", "text"}`` or
        ``{"type": "image_url", "image_url": {"url"}}`` with a ``data:`` URL. :class:`astraflow_core.errors.UserError` for an
        image that cannot be read, and for any if the policy is without ``images = true``."""

    def expand_images(
        self, tokens: npt.NDArray[np.int32], files: Sequence[bytes]
    ) -> tuple[npt.NDArray[np.int32], Images]:
        """``tokens``, in which a template wrote one placeholder for each of the image ``files``, with as many as the model
        reads for an image; and the images in their places. :class:`astraflow_core.errors.UserError` as of :meth:`render_images`."""

    def with_images(self, images: Images) -> PolicyEngine:
        """The same policy, which sees ``images`` at their places in all tokens that it is given from now on."""

    def chat_text(
        self, messages: Messages, add_generation_prompt: bool = True, tools: Tools = ()
    ) -> str:
        """The text that :meth:`render` encodes. A template without support for ``tools`` omits them.
        :class:`astraflow_core.errors.UserError` if it refuses the messages."""

    async def generate(
        self, prompt: npt.NDArray[np.int32], sampling: Sampling | None = None
    ) -> GenerateResult:
        """Sample a continuation. An aborted one (engine paused with ``abort``) is continued automatically."""

    async def score(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        """The log-prob of each token given those before it, at temperature 1, by the weights served now: float32 ``[T]``,
        the first is 0. For engines with the capability ``score``."""

    def sequence(
        self, prompt: npt.NDArray[np.int32], result: GenerateResult, reward: float | None = None
    ) -> TokenSequence:
        """Prompt and sampled tokens as a sequence whose sampled tokens are trained."""

    def completion(self, result: GenerateResult) -> Completion:
        """The decoded sampled part, for rewards."""

    def session(self) -> PolicyEngine:
        """The same policy with requests that share a session (and so a cache)."""


class Workflow(Protocol):
    """Built as ``factory(config, context)``; any number of episodes run at once in one instance."""

    async def run_episode(
        self, engines: Mapping[str, PolicyEngine], prompt: Prompt
    ) -> Trajectory | None:
        """Play one episode; ``None`` rejects the sample. The reward component may compute the rewards instead."""
