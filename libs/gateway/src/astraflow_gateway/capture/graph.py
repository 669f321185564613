"""The calls of an episode, linked where one continues the token ids of another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import xxhash

from astraflow_core.types import GenerateResult, Images
from astraflow_core.types import Sequence as TokenSequence
from astraflow_core.types.generation import images_between
from astraflow_core.types.trajectory import NOT_SAMPLED

Tokens = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """One request to an engine: ``prompt`` int32 ``[P]`` as the engine got it, and what it sampled.

    ``parent`` is the call whose prompt and sampled tokens this prompt begins with. ``trained`` is false for a call
    whose tokens shall not be trained. ``images``: those that stand in the prompt.
    """

    policy: str
    prompt: Tokens
    result: GenerateResult
    parent: Call | None = None
    trained: bool = True
    images: Images = ()

    @property
    def end(self) -> int:
        """Length of the prompt and the sampled tokens together."""
        return len(self.prompt) + len(self.result.tokens)

    @property
    def tokens(self) -> Tokens:
        """The prompt and the sampled tokens."""
        return np.concatenate([self.prompt, self.result.tokens])

    @property
    def lineage(self) -> Iterator[Call]:
        """This call, its parent, and so on."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.parent


@dataclass
class CaptureGraph:
    """Calls by exact prefix of tokens and images. Two calls of the same prompt that sampled the same tokens cannot be told apart
    by what continues them: such a continuation is a new root, counted in ``ambiguous``. ``turn_rewards``: what the
    turns of some calls earned; ``turn_states``: in which states they were taken."""

    calls: list[Call] = field(default_factory=list)
    ambiguous: int = 0
    turn_rewards: dict[Call, float] = field(default_factory=dict)
    turn_states: dict[Call, str] = field(default_factory=dict)
    _ends: dict[tuple[str, int, int], list[Call]] = field(default_factory=dict)
    _lengths: dict[str, dict[int, None]] = field(default_factory=dict)

    def add(
        self,
        policy: str,
        prompt: Tokens,
        result: GenerateResult,
        trained: bool = True,
        parent: Call | None = None,
        alone: bool = False,
        images: Images = (),
    ) -> Call:
        """Record a call. Unless its ``parent`` is known, it is the longest recorded call that its prompt begins with; none
        is looked for if the call is ``alone``."""
        prompt = np.asarray(prompt, np.int32)
        if not alone:
            parent = parent or self._parent(policy, prompt, images)
        call = Call(policy, prompt, result, parent, trained, images)
        self.calls.append(call)
        if len(result.tokens):
            tokens = call.tokens
            self._ends.setdefault((policy, len(tokens), _digest(tokens)), []).append(call)
            self._lengths.setdefault(policy, {})[len(tokens)] = None
        return call

    def _parent(self, policy: str, prompt: Tokens, images: Images) -> Call | None:
        lengths = self._lengths.get(policy, {})
        for length in sorted((each for each in lengths if each <= len(prompt)), reverse=True):
            prefix = prompt[:length]
            found = self._ends.get((policy, length, _digest(prefix)), [])
            seen = images_between(images, 0, length, 0)
            found = [
                call
                for call in found
                if call.images == seen and np.array_equal(call.tokens, prefix)
            ]
            if len(found) > 1:
                self.ambiguous += 1
                return None
            if found:
                return found[0]
        return None

    @property
    def leaves(self) -> list[Call]:
        """The calls that no other continues, in the order in which they came."""
        continued = {id(call.parent) for call in self.calls}
        return [call for call in self.calls if id(call) not in continued]

    def sequences(self) -> list[tuple[Call, TokenSequence]]:
        """One sequence for each leaf, with the leaf. A call that several leaves share is trained in the first of
        them, so that every sampled token is trained once, and has the reward and the state of its turn there. A sequence in which nothing
        is trained is left out."""
        done: set[int] = set()
        made = []
        for leaf in self.leaves:
            fresh = [call for call in leaf.lineage if id(call) not in done and call.trained]
            done.update(id(call) for call in fresh)
            if any(len(call.result.tokens) for call in fresh):
                made.append((leaf, self._sequence(leaf, fresh)))
        return made

    def _sequence(self, leaf: Call, trained: list[Call]) -> TokenSequence:
        ends = {call: call.end - 1 for call in reversed(trained) if len(call.result.tokens)}
        rewards, states = self.turn_rewards, self.turn_states
        return replace(
            _sequence(leaf, trained),
            turn_rewards={ends[call]: rewards[call] for call in ends if call in rewards} or None,
            turn_states={ends[call]: states[call] for call in ends if call in states} or None,
        )


def _sequence(leaf: Call, trained: list[Call]) -> TokenSequence:
    mask = np.zeros(leaf.end, np.bool_)
    logprobs = np.zeros(leaf.end, np.float32)
    versions = np.full(leaf.end, NOT_SAMPLED, np.int32)
    for call in leaf.lineage:
        sampled = slice(len(call.prompt), call.end)
        logprobs[sampled], versions[sampled] = call.result.logprobs, call.result.versions
    for call in trained:
        mask[len(call.prompt) : call.end] = True
    # A column says nothing of a token that is not trained here.
    logprobs[~mask], versions[~mask] = 0.0, NOT_SAMPLED
    return TokenSequence(leaf.policy, leaf.tokens, mask, logprobs, versions, images=leaf.images)


def _digest(tokens: Tokens) -> int:
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(tokens).data)
