"""Plays all episodes of an evaluation, until they are done or it is interrupted."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from astraflow_contrib_eval.player import EpisodePlayer, EvaluatedEpisode, playing
from astraflow_contrib_eval.subject import EvaluationSubject
from astraflow_core.errors import RunFailed
from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_runtime.dataflow.tasks.scores import PromptScore, SetScore, score_together
from astraflow_wire.host import active_clock


@dataclass
class PromptEpisodes:
    """The episodes of one prompt so far."""

    prompt_id: str
    scores: list[dict[str, PromptScore]] = field(default_factory=list)
    failed: int = 0
    error: str = ""

    @property
    def together(self) -> dict[str, PromptScore]:
        """Policy → score over the episodes that did not fail."""
        return score_together(self.scores)


@dataclass
class SetEpisodes:
    """What was played of a set: ``samples`` of each of the first ``count`` prompts are wanted."""

    name: str
    source: PromptSource
    count: int
    samples: int
    prompts: dict[int, PromptEpisodes] = field(default_factory=dict)
    cut_off: int = 0
    tokens: int = 0
    last_error: str = ""

    @property
    def planned(self) -> int:
        """Episodes that are wanted."""
        return self.count * self.samples

    @property
    def played(self) -> int:
        """Episodes that came to an end, rejected ones included and failed ones not."""
        return sum(len(prompt.scores) for prompt in self.prompts.values())

    @property
    def failed(self) -> int:
        """Episodes of which no attempt came to an end."""
        return sum(prompt.failed for prompt in self.prompts.values())

    @property
    def rejected(self) -> int:
        """Episodes that the workflow rejected; they count as not correct."""
        return sum(not scores for prompt in self.prompts.values() for scores in prompt.scores)

    @property
    def ended(self) -> list[PromptEpisodes]:
        """Prompts with a result, in the order of the set."""
        return [prompt for _, prompt in sorted(self.prompts.items()) if prompt.scores]

    def add(self, index: int, episode: EvaluatedEpisode) -> None:
        """Add an episode."""
        prompt = self.prompts.setdefault(index, PromptEpisodes(episode.prompt_id))
        if episode.scores is None:
            prompt.failed += 1
            prompt.error = self.last_error = episode.error
            return
        prompt.scores.append(episode.scores)
        if episode.trajectory is not None:
            ends = [each.finish_reason for each in episode.completions]
            self.cut_off += "length" in ends
            self.tokens += sum(int(each.loss_mask.sum()) for each in episode.trajectory.sequences)

    def score(self, policies: list[str]) -> SetScore:
        """As a run counts them."""
        score = SetScore(self.samples)
        for prompt in self.prompts.values():
            if prompt.scores:
                score.add(prompt.together, policies)
            elif prompt.failed:
                score.add_failure(prompt.error)
        return score


@dataclass
class Evaluated:
    """An evaluation that ended: ``interrupted`` by the number of a signal (0: not), or by an ``error``."""

    subject: EvaluationSubject
    sets: dict[str, SetEpisodes]
    seconds: float = 0.0
    interrupted: int = 0
    error: str = ""

    @property
    def partial(self) -> bool:
        """Whether episodes are missing."""
        return bool(self.interrupted or self.error)


Listener = Callable[[SetEpisodes, EvaluatedEpisode], None]
"""Told of each episode."""


def evaluate(
    subject: EvaluationSubject,
    sets: Mapping[str, SetEpisodes],
    told: Listener,
    began: Callable[[], None],
) -> Evaluated:
    """Play them all, as many at once as the config says; ``began``: called when the engines have started. Ctrl-C and
    SIGTERM end it early, and so does what makes every episode fail; what was played by then is in the result."""
    return active_clock.run(_evaluate(Evaluated(subject, dict(sets)), told, began))


async def _evaluate(result: Evaluated, told: Listener, began: Callable[[], None]) -> Evaluated:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    async with playing(result.subject) as (player, engines):

        def stop(number: int) -> None:
            result.interrupted = number
            player.watchdog.hurry()
            stopped.set()
            for each in (signal.SIGINT, signal.SIGTERM):  # a second one ends it at once
                loop.remove_signal_handler(each)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        work = asyncio.create_task(_work(result, player, told, began))
        waiting = asyncio.create_task(stopped.wait())
        try:
            await asyncio.wait({work, waiting, engines}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, waiting):
                task.cancel()
            await asyncio.gather(work, waiting, return_exceptions=True)
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        for task in (engines, work):
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                _record_failure(result, error)
    return result


def _record_failure(result: Evaluated, error: BaseException) -> None:
    """A failure after the first episode leaves what was played; one before it leaves nothing, and is raised."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, RunFailed) or not any(each.played for each in result.sets.values()):
        raise error
    result.error = str(error)


async def _work(
    result: Evaluated, player: EpisodePlayer, told: Listener, began: Callable[[], None]
) -> None:
    await player.start()
    began()
    config = result.subject.config
    todo = _todo(result.sets)
    most = config.run.max_consecutive_failures
    failures = 0

    async def take() -> None:
        nonlocal failures
        for episodes, index, sample in todo:
            episode = await player.play(episodes.name, episodes.source[index], sample)
            episodes.add(index, episode)
            told(episodes, episode)
            failures = failures + 1 if episode.scores is None else 0
            if failures >= most:
                raise RunFailed(
                    f"{failures} consecutive episodes failed; the last error: {episode.error}; if this is expected, "
                    "raise run.max_consecutive_failures with --override"
                )

    loop = asyncio.get_running_loop()
    start = loop.time()
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(config.raas.max_concurrent_episodes):
                group.create_task(take())
    finally:
        result.seconds = loop.time() - start


def _todo(sets: Mapping[str, SetEpisodes]) -> Iterator[tuple[SetEpisodes, int, int]]:
    """All samples of a prompt before those of the next, so that what is stopped has whole prompts."""
    for episodes in sets.values():
        for index in range(episodes.count):
            for sample in range(episodes.samples):
                yield episodes, index, sample
