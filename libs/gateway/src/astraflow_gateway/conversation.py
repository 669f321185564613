"""Chats that a workflow holds with a policy directly, without the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from astraflow_core.errors import WorkflowError
from astraflow_core.protocols.workflow import PolicyEngine
from astraflow_core.types import RunInfo
from astraflow_core.types import Sequence as TokenSequence
from astraflow_gateway.capture.graph import Call
from astraflow_gateway.chat.format import ChatFormat
from astraflow_gateway.chat.history import History
from astraflow_gateway.chat.messages import Message, ModelReply, ToolCall
from astraflow_gateway.episode import Budget, Episode, Rules
from astraflow_gateway.requests import BadRequest, Finish, ModelRequest


class NoMoreTurns(Exception):
    """A policy cannot be asked again. ``reason`` is "budget", if that of the episode is spent, or "context", if the
    conversation is longer than its model reads."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ModelTurn:
    """What a policy said: ``reply`` has its ``content``, ``reasoning`` and ``tool_calls``, ``call`` the prompt, the
    sampled ids, their log-probs and versions. ``finish`` is "stop", "length" or "tool_calls"."""

    reply: ModelReply
    finish: Finish
    call: Call


@dataclass
class Conversation:
    """A chat with ``policy``, which is shown ``messages`` and may call ``tools``. Each reply continues the recorded
    ids where the template of the model allows it. Conversations of one episode are independent, even
    with the same policy."""

    episode: Episode
    policy: str
    messages: list[Message] = field(default_factory=list)
    tools: Sequence[Mapping[str, Any]] = ()
    turns: list[ModelTurn] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        given, self.messages = self.messages, []
        self.append(*given)
        episode, policy = self.episode, self.policy
        self._history = History(episode.engines[policy], episode.formats[policy])

    def say(self, role: str, content: str) -> None:
        """Append a message of a system or a user."""
        self.append({"role": role, "content": content})

    def append(self, *messages: Message) -> None:
        """Append messages, as :data:`~astraflow_gateway.chat.messages.Message` has them."""
        for message in messages:
            if not isinstance(message.get("role"), str) or not isinstance(
                message.get("content"), str | list
            ):
                raise WorkflowError(
                    f"a message is {message!r:.200}; expected an object with role and content, both text, or content a list of "
                    "parts"
                )
            self.messages.append(dict(message))

    def answer_tool(self, call: ToolCall, content: str | list[dict[str, Any]]) -> None:
        """Append the result of a tool that the policy has called: text, or parts of text and images."""
        self.append(
            {"role": "tool", "content": content, "tool_call_id": call.id, "name": call.name}
        )

    async def reply(
        self, *, max_tokens: int | None = None, stop: Iterable[str] = (), tool_choice: str = "auto"
    ) -> ModelTurn:
        """Sample the policy's next message and append it. ``max_tokens`` and ``stop`` can only make it shorter than the
        run's sampling does; ``tool_choice`` is "auto", "none", "required" or the name of a tool.

        :class:`NoMoreTurns` if the budget or the context is used up, :class:`WorkflowError` if the model's template
        refuses the messages.
        """
        request = ModelRequest(
            self.policy,
            list(self.messages),
            tools=list(self.tools),
            tool_choice=tool_choice,
            max_tokens=max_tokens,
            stop=tuple(stop),
        )
        try:
            answer = await self.episode.ask(request, self._history)
        except BadRequest as error:
            if error.kind == "context_length_exceeded":
                raise NoMoreTurns("context", f"policy {self.policy!r}: {error}") from error
            raise WorkflowError(f"policy {self.policy!r}: {error}") from error
        (choice,) = answer.choices
        if choice.call is None:
            raise NoMoreTurns("budget", f"policy {self.policy!r}: {choice.reply.content}")
        turn = ModelTurn(choice.reply, choice.finish, choice.call)
        self.turns.append(turn)
        self.messages.append(turn.reply.message)
        return turn

    def reward(self, turn: ModelTurn, value: float) -> None:
        """Report what ``turn`` earned; it is added to earlier reports. It becomes the reward of the turn's last token
        (:attr:`Sequence.turn_rewards <astraflow_core.types.Sequence>`)."""
        rewards = self.episode.graph.turn_rewards
        rewards[turn.call] = rewards.get(turn.call, 0.0) + float(value)

    def met(self, turn: ModelTurn, state: str) -> None:
        """Say in which state ``turn`` was taken: what the same state is called in every episode of a group."""
        self.episode.graph.turn_states[turn.call] = state

    def sequences(self) -> list[TokenSequence]:
        """What of this conversation is trained."""
        own = {turn.call for turn in self.turns}
        return [sequence for leaf, sequence in self.episode.graph.sequences() if leaf in own]


class Episodes:
    """Begins the episodes of a workflow: the rules and the formats of the models, which they share. ``plain_calls``: that
    of :class:`~astraflow_gateway.chat.format.ChatFormat`."""

    def __init__(self, run: RunInfo, budget: Budget, plain_calls: bool = False) -> None:
        self._plain_calls = plain_calls
        self._rules = Rules(budget, train_auxiliary=True, trained=frozenset(run.policies))
        self._formats: dict[str, ChatFormat] = {}

    def begin(self, engines: Mapping[str, PolicyEngine]) -> Episode:
        """A new episode over the policies and frozen engines of a run."""
        for name, engine in engines.items():
            if name not in self._formats:
                self._formats[name] = ChatFormat(engine, self._plain_calls)
        return Episode(engines, self._formats, self._rules, next(iter(engines)))
