"""Some trajectories of each step, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_runtime.rollouts.reader import LoadedTrajectory, RolloutReader
from astraflow_runtime.rollouts.records import UpdateLine
from astraflow_trackers.records import RolloutRow

LONGEST = 4000
"""Characters of a text; the rest is in the rollout store."""


class RolloutFeed:
    """Reads the rollout store of the run in ``directory``. ``per_step``: trajectories of an update, with the highest and the
    lowest reward and some between; ``sent``: policy → the last step that the tracker has."""

    def __init__(self, directory: Path, per_step: int, sent: Mapping[str, int]) -> None:
        self._directory, self._per_step, self._last = directory, per_step, dict(sent)
        self._reader: RolloutReader | None = None

    def new(self) -> list[RolloutRow]:
        """The rows of the next update that has any; empty if there is none yet."""
        if not self._per_step or not self._refreshed():
            return []
        assert self._reader is not None
        for line in self._reader.update_lines():
            if line.step > self._last.get(line.policy, 0):
                self._last[line.policy] = line.step
                if rows := self._rows(self._reader, line):
                    return rows
        return []

    def _refreshed(self) -> bool:
        try:
            if self._reader is None:
                self._reader = RolloutReader(self._directory)
            else:
                self._reader.refresh()
        except UserError:  # nothing is stored yet
            return False
        return True

    def _rows(self, reader: RolloutReader, line: UpdateLine) -> list[RolloutRow]:
        found: list[LoadedTrajectory] = []
        for number in sorted({group for group, _ in line.rows}):
            try:
                group = reader.group(number)
            except UserError:  # newer rollouts took its place
                continue
            own = {trajectory for each, trajectory in line.rows if each == number}
            first = group.record.first_trajectory
            found += [t for i, t in enumerate(group.trajectories) if first + i in own]
        found.sort(key=lambda each: -each.stored.rewards.get(line.policy, 0.0))
        most = min(self._per_step, len(found))
        chosen = [found[round(i * (len(found) - 1) / max(1, most - 1))] for i in range(most)]
        return [_row(line, each) for each in chosen]


def _row(line: UpdateLine, loaded: LoadedTrajectory) -> RolloutRow:
    prompt, completion = _texts(loaded)
    entry = loaded.entry
    return RolloutRow(
        policy=line.policy,
        step=line.step,
        group=entry.group,
        prompt_id=entry.prompt_id,
        prompt=_cut(prompt),
        completion=_cut(completion),
        reward=loaded.stored.rewards.get(line.policy, entry.reward or 0.0),
        tokens=entry.tokens,
        truncated=entry.truncated,
        versions=entry.versions,
        time_s=entry.time_s,
    )


def _texts(loaded: LoadedTrajectory) -> tuple[str, str]:
    """What stood before the first sampled token, and what followed it."""
    turns = list(loaded.stored.turns or ())
    prompt = turns.pop(0).text if turns and turns[0].role == "prompt" else ""
    if len(turns) == 1:
        return prompt, turns[0].text
    return prompt, "\n".join(f"[{turn.role}] {turn.text}" for turn in turns)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"
