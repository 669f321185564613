"""Policies without models, for tests of workflows and rewards: they answer as a test says, and note each request."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from astraflow_core.protocols.workflow import Messages, PolicyEngine, Tools
from astraflow_core.types import GenerateRequest, GenerateResult, Sampling
from astraflow_engine_host.protocol import EngineError
from astraflow_gateway.chat.quoting import Quoting
from astraflow_runtime.raas.engines.replica import Replica
from astraflow_runtime.raas.engines.replicas import Replicas
from astraflow_runtime.raas.episodes.chat_template import ChatTemplate
from astraflow_runtime.raas.episodes.policy_engine import PolicyHandle, TaskPolicyEngine

CONTEXT = 1 << 20
VOCABULARY = 400
SAMPLING = Sampling(max_tokens=48)
_END = 256
_PAIRS = 300
"""Id of the token ``00``, which other pairs of digits follow."""
_SPECIALS = 400
_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Truncated:
    """An answer that ends for its length: its ``finish_reason`` is ``"length"``, however many tokens were asked for."""

    text: str


@dataclass(frozen=True, slots=True)
class FailedAnswer:
    """No answer: ``generate`` raises the error of an engine with this message."""

    message: str


Answer = str | bytes | Truncated | FailedAnswer
"""What a policy answers. Text and bytes end by themselves, or for their length after ``max_tokens``, a byte a token."""

Says = Callable[[str, str], Answer]
"""``says(policy, text of the prompt)``: what the policy answers."""

episode: ContextVar[int] = ContextVar("episode", default=-1)
"""Number of the episode in which code runs, that of the tasks that it makes included."""


class PairsTokenizer:
    """Bytes, and one token for each pair of digits. What is sampled has no pairs, so that text which is decoded and
    encoded again becomes other tokens, as with any real tokenizer.

    With ``template``, the chat template of a model (Jinja), messages are rendered by it: ``end`` is the text of the
    token that ends a sequence, ``specials`` are further texts that are one token each.
    """

    eos_token_ids = (_END,)

    def __init__(
        self, template: str | None = None, end: str = "<end>", specials: Sequence[str] = ()
    ) -> None:
        config = {"chat_template": template or _TEMPLATE, "bos_token": "", "eos_token": end}
        self._template = ChatTemplate(Path("template"), config)
        known = () if template is None else (end, *specials)
        self.special_texts = known
        self._ids = {text: _END if at == 0 else _SPECIALS + at for at, text in enumerate(known)}
        self._texts = {_END: end} | {token: text for text, token in self._ids.items()}
        self._parts = re.compile("|".join([*map(re.escape, self._ids), r"\d\d"]), re.ASCII)

    @property
    def fingerprint(self) -> str:
        """Of the special texts; everything else is the same."""
        return f"pairs {sorted(self._ids.items())}"

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Token ids, read-only as those of the real one."""
        ids: list[int] = []
        at = 0
        for part in self._parts.finditer(text):
            ids += text[at : part.start()].encode("utf-8", "replace")
            ids.append(self._ids[part[0]] if part[0] in self._ids else _PAIRS + int(part[0]))
            at = part.end()
        ids += text[at:].encode("utf-8", "replace")
        made = np.array(ids, np.int32)
        made.flags.writeable = False
        return made

    def decode(self, tokens: npt.NDArray[np.int32], skip_special: bool = True) -> str:
        """Bytes that are no UTF-8 become U+FFFD."""
        parts = bytearray()
        for token in np.asarray(tokens).tolist():
            if token < _END:
                parts.append(token)
            elif _PAIRS <= token < _PAIRS + 100:
                parts += f"{token - _PAIRS:02}".encode()
            elif not skip_special:
                parts += self._texts[token].encode()
        return parts.decode("utf-8", "replace")

    def render(
        self, messages: Messages | str, add_generation_prompt: bool = True
    ) -> npt.NDArray[np.int32]:
        """By the template; without one ``<role>content``, line by line."""
        if isinstance(messages, str):
            return self.encode(messages)
        return Quoting(self).render(
            messages, lambda said, tools: self.chat_text(said, add_generation_prompt, tools)
        )

    def chat_text(
        self, messages: Messages, add_generation_prompt: bool = True, tools: Tools = ()
    ) -> str:
        """The text that :meth:`render` encodes."""
        return self._template.render(messages, add_generation_prompt, tools)


@dataclass
class ScriptedRequest:
    """One request: who made it, what it was answered, and whether it is over."""

    episode: int
    policy: str
    prompt: npt.NDArray[np.int32]
    text: str
    """The prompt as text."""
    result: GenerateResult | None = None
    over: bool = False
    kept: bytes = b""
    """The result's columns as they were given."""

    def columns(self) -> bytes:
        """The result's columns as they are."""
        if self.result is None:
            return b""
        return b"".join(
            each.tobytes()
            for each in (self.result.tokens, self.result.logprobs, self.result.versions)
        )


def answer(policy: str, text: str) -> str:
    """What a policy says unless a suite is told otherwise: digits and words that follow from what it was shown."""
    noise = xxhash.xxh3_64_intdigest(f"{policy} reads {text}".encode("utf-8", "replace"))
    return f"{noise % 100_000} is it" + ("; or not." * (noise // 7 % 4))


class _Script:
    """The answers of each policy, one after the other."""

    def __init__(self, script: Mapping[str, Sequence[Answer]]) -> None:
        self._script, self._next = script, dict.fromkeys(script, 0)

    def __call__(self, policy: str, text: str) -> Answer:
        """The next answer of a policy."""
        answers, number = self._script.get(policy, ()), self._next.get(policy, 0)
        if number == len(answers):
            raise AssertionError(
                f"policy {policy!r} was asked {number + 1} times, and the script has {number} answers of it; this "
                f"request was: {text!r:.200}"
            )
        self._next[policy] = number + 1
        return answers[number]


@dataclass
class ScriptedPolicies:
    """The policies of a run, ``policies`` that are trained and ``frozen`` ones.

    ``says`` decides what they answer: a function of the policy and the text that it is shown, or the answers of each
    policy in the order of its requests. ``asked`` has each request. The request with the number ``fails`` is an error
    of the engine, and that with the number ``holds`` is never answered: ``held`` is set when it is made. Unless a
    policy is frozen, its version rises in the middle of each answer, as it may in a run.
    """

    policies: Sequence[str]
    frozen: Sequence[str] = ()
    says: Says | Mapping[str, Sequence[Answer]] = answer
    sampling: Sampling = SAMPLING
    tokenizer: PairsTokenizer = field(default_factory=PairsTokenizer)
    fails: int = -1
    holds: int = -1
    version: int = 1
    asked: list[ScriptedRequest] = field(default_factory=list)
    held: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        if isinstance(self.says, Mapping):
            unknown = [name for name in self.says if name not in (*self.policies, *self.frozen)]
            assert not unknown, (
                f"the script has answers of {unknown}; the policies are {self.policies}"
            )
        self._says = _Script(self.says) if isinstance(self.says, Mapping) else self.says
        self.handles = {
            name: self._handle(name, name in self.frozen) for name in (*self.policies, *self.frozen)
        }

    def engines(self) -> dict[str, PolicyEngine]:
        """What an episode, or a reward that asks engines, is given."""
        return {
            name: TaskPolicyEngine(handle, self.sampling) for name, handle in self.handles.items()
        }

    def _handle(self, policy: str, frozen: bool) -> PolicyHandle:
        engine: Any = _Engine(self, policy)
        replica = Replica(0, engine, lambda: 0 if frozen else self.version)
        return PolicyHandle(Replicas([replica]), self.tokenizer, frozen)

    async def play(self, number: int, play: Callable[[], Awaitable[Any]]) -> Any:
        """Await ``play()`` as the episode ``number``, which its requests note; an exception is its result."""

        async def within() -> Any:
            episode.set(number)
            return await play()

        playing = asyncio.create_task(within())
        await asyncio.wait({playing})
        if playing.cancelled():
            return asyncio.CancelledError()
        return playing.exception() or playing.result()

    async def answered(self, policy: str, request: GenerateRequest) -> GenerateResult:
        """What ``policy`` samples, some turns of the event loop later; the weights change half-way."""
        number, text = len(self.asked), self.tokenizer.decode(request.prompt)
        asked = ScriptedRequest(episode.get(), policy, request.prompt.copy(), text)
        self.asked.append(asked)
        try:
            if number == self.holds:
                self.held.set()
                await asyncio.Event().wait()
            noise = xxhash.xxh3_64_intdigest(request.prompt.tobytes() + policy.encode())
            for _ in range(1 + noise % 7):
                await asyncio.sleep(0)
            if number == self.fails:
                raise EngineError(f"request {request.id}: the device is out of memory")
            said = self._says(policy, text)
            if isinstance(said, FailedAnswer):
                raise EngineError(said.message)
            asked.result = self._sampled(policy, request, said)
            asked.kept = asked.columns()
            return asked.result
        finally:
            asked.over = True

    def _sampled(
        self, policy: str, request: GenerateRequest, said: str | bytes | Truncated
    ) -> GenerateResult:
        text, end = (said.text, ()) if isinstance(said, Truncated) else (said, (_END,))
        whole = [*(text.encode("utf-8", "replace") if isinstance(text, str) else text), *end]
        ids = np.array(whole[: request.sampling.max_tokens], np.int32)
        context = xxhash.xxh3_64(request.prompt.tobytes() + policy.encode())
        logprobs = np.zeros(len(ids), np.float32)
        for place, token in enumerate(ids.tolist()):
            context.update(token.to_bytes(4, "little"))
            logprobs[place] = -0.001 * (1 + context.intdigest() % 4000)
        versions = np.full(len(ids), 0 if policy in self.frozen else self.version, np.int32)
        if policy not in self.frozen:
            versions[len(ids) // 2 :] += 1
            self.version += 1
        reason: Any = "stop" if end and len(ids) == len(whole) else "length"
        return GenerateResult(request.id, ids, logprobs, versions, reason)


class _Engine:
    """Stands where a policy's supervised engine does."""

    answers, restarts, stopped_s = True, 0, 0.0

    def __init__(self, policies: ScriptedPolicies, policy: str) -> None:
        self.policy, self.label, self._policies = policy, f"policy {policy!r}", policies
        client = SimpleNamespace(lost=None, pending=0)
        self.host = SimpleNamespace(client=client, context_length=CONTEXT, silence=None, cpu_s=0.0)

    def running(self) -> Any:
        """Its host."""
        return self.host

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        """What the policy answers."""
        return await self._policies.answered(self.policy, request)

    async def score(
        self, tokens: npt.NDArray[np.int32], deadline_s: float
    ) -> npt.NDArray[np.float32]:
        """Made up of the policy and all tokens up to each."""
        context = xxhash.xxh3_64(self.policy.encode())
        scores = np.zeros(len(tokens), np.float32)
        for place, token in enumerate(tokens.tolist()):
            context.update(token.to_bytes(4, "little"))
            scores[place] = -0.001 * (1 + context.intdigest() % 4000) if place else 0.0
        return scores
