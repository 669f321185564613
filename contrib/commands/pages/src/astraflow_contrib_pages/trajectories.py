"""Stored rollouts for the pages: lists, groups, and each token with what engine and trainer thought of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import tokenizers

from astraflow_contrib_pages.plugin_views import PluginViews
from astraflow_contrib_pages.runs_folder import RunFolder
from astraflow_contrib_pages.views.process import ViewsProcess
from astraflow_core.errors import AstraFlowError, Refused
from astraflow_runtime.rollouts.reader import (
    LoadedGroup,
    LoadedTrajectory,
    RolloutEntry,
    RolloutReader,
    TrainedSequence,
)
from astraflow_runtime.rollouts.records import StoredSequence
from astraflow_runtime.telemetry.printable import all_printable, printable

MOST_LISTED = 2000
SEARCH_S = 1.0
"""Longest that texts are read for one answer."""
MOST_TOKENS = 50_000
"""Maximum of one sequence; a page with more would be useless."""
_MOST_TEXT = 20_000
_MOST_TOKENIZER_BYTES = 64 << 20


class StoredRollouts:
    """The rollouts of one run. Any thread may call it; a :class:`RolloutReader` is of one."""

    def __init__(self, run: RunFolder, views: ViewsProcess) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._reader: RolloutReader | None = None
        self._views = PluginViews(run.path, views)
        self._tokenizers: dict[str, tokenizers.Tokenizer | None] = {}

    def _opened(self) -> RolloutReader:
        if self._reader is None:
            self._reader = RolloutReader(self._run.path)
        else:
            self._reader.refresh()
        return self._reader

    def listed(self, where: str) -> dict[str, Any]:
        """The newest that fit a filter; ``Refused`` (400) if that is wrong. ``said``: why there are no rollouts. ``unread``:
        how many have texts that the time for an answer did not suffice to read; to ask again reads on."""
        with self._lock:
            try:
                reader = self._opened()
            except AstraFlowError as error:
                return {"stored": 0, "dropped": 0, "entries": [], "said": str(error)}
            found = self._read_by(
                400, lambda: reader.search(where, most=MOST_LISTED, for_s=SEARCH_S)
            )
            return {
                "stored": len(reader),
                "dropped": reader.dropped,
                "more": found.more,
                "unread": found.unread,
                "damaged": found.damaged,
                "entries": [_entry(each) for each in found.entries],
            }

    def group(self, name: str, index: int) -> dict[str, Any]:
        """A group with the turns of all its trajectories, and the tokens of number ``index``; ``Refused`` (404) if it is
        not stored."""
        with self._lock:
            group = self._read_by(404, lambda: self._opened().group(name))
            record = group.record
            return {
                "group": record.group,
                "number": record.number,
                "prompt_id": printable(record.prompt_id),
                "prompt_data": all_printable(record.prompt_data),
                "raas": record.raas,
                "time_s": record.time_s,
                "accepted": record.accepted,
                "newest": record.newest,
                "verdicts": msgspec.to_builtins(record.verdicts),
                "trajectories": [_trajectory(each) for each in group.trajectories],
                "tokens": self._tokens(group, index),
                "viewed": self._views.any,
                "index": index,
            }

    def _read_by(self, status: int, read: Any) -> Any:
        try:
            return read()
        except AstraFlowError as error:
            raise Refused(status, str(error)) from error

    def _tokens(self, group: LoadedGroup, index: int) -> list[dict[str, Any]]:
        if not 0 <= index < len(group.trajectories):
            return []
        loaded = group.trajectories[index]
        return [
            _sequence(sequence, updates, self._texts(sequence))
            for sequence, updates in zip(loaded.stored.sequences, loaded.trained, strict=True)
        ]

    def views(self, name: str, index: int) -> list[dict[str, Any]]:
        """What plugins of the run show of a trajectory, which they get as docs/pages.md says; ``Refused`` (404) if it is
        not stored. It takes as long as they do, and nothing else waits for it."""
        with self._lock:
            group = self._read_by(404, lambda: self._opened().group(name))
        if not 0 <= index < len(group.trajectories):
            return []
        record, stored = group.record, group.trajectories[index].stored
        return self._views.of(
            {
                "group": record.group,
                "index": index,
                "prompt_id": record.prompt_id,
                "prompt_data": record.prompt_data,
                "rewards": dict(stored.rewards),
                "metrics": dict(stored.metrics),
                "turns": [
                    {"role": turn.role, "policy": turn.policy, "text": turn.text}
                    for turn in stored.turns or ()
                ],
                "workflow": self._run.config.get("workflow", {}),
            }
        )

    def _texts(self, sequence: StoredSequence) -> list[str] | None:
        """The text of each token; ``None`` if the model of its policy is not on this host."""
        tokenizer = self._tokenizer(sequence.policy)
        if tokenizer is None:
            return None
        ids = sequence.tokens[:MOST_TOKENS].tolist()
        texts = tokenizer.decode_batch([[each] for each in ids], skip_special_tokens=False)
        return [printable(text) for text in texts]

    def _tokenizer(self, policy: str) -> tokenizers.Tokenizer | None:
        if policy not in self._tokenizers:
            self._tokenizers[policy] = self._found_tokenizer(policy)
        return self._tokenizers[policy]

    def _found_tokenizer(self, policy: str) -> tokenizers.Tokenizer | None:
        table = self._run.config.get("policies", {}).get(policy, {})
        file = Path(str(table.get("model", ""))) / "tokenizer.json"
        if not file.is_file() or file.stat().st_size > _MOST_TOKENIZER_BYTES:
            return None
        return tokenizers.Tokenizer.from_file(str(file))


def _entry(entry: RolloutEntry) -> dict[str, Any]:
    return {
        "group": entry.group, "index": entry.index, "prompt": printable(entry.prompt_id), "raas": entry.raas, "time_s": entry.time_s,
        "outcome": entry.outcome, "reward": entry.reward, "tokens": entry.tokens, "sampled": entry.sampled,
        "turns": entry.turns, "truncated": entry.truncated, "versions": entry.versions, "tools": entry.tools,
        "step": entry.step, "policies": list(entry.rewards), "reason": printable(entry.reason[:500]),
    }  # fmt: skip


def _trajectory(loaded: LoadedTrajectory) -> dict[str, Any]:
    turns = loaded.stored.turns
    return {
        **_entry(loaded.entry),
        "rewards": loaded.stored.rewards,
        "metrics": loaded.stored.metrics,
        "turns_said": None
        if turns is None
        else [
            {
                "role": turn.role, "policy": turn.policy, "text": printable(turn.text[:_MOST_TEXT]),
                "cut": len(turn.text) > _MOST_TEXT, "sequence": turn.sequence, "start": turn.start, "end": turn.end,
            }
            for turn in turns
        ],
    }  # fmt: skip


def _sequence(
    stored: StoredSequence, updates: Sequence[TrainedSequence], texts: list[str] | None
) -> dict[str, Any]:
    """Each token; what the trainer thought is of the first update that was made with the sequence."""
    first = updates[0].row if updates else None
    trainer = None if first is None else first.trainer_logprobs
    reference = None if first is None else first.reference_logprobs
    return {
        "policy": stored.policy,
        "reward": stored.reward,
        "truncated": stored.truncated,
        "length": len(stored.tokens),
        "ids": stored.tokens[:MOST_TOKENS].tolist(),
        "texts": texts,
        "mask": stored.loss_mask[:MOST_TOKENS].astype(int).tolist(),
        "versions": stored.versions[:MOST_TOKENS].tolist(),
        "logprobs": _rounded(stored.logprobs),
        "trainer": _rounded(trainer),
        "reference": _rounded(reference),
        "entropies": None if first is None else _rounded(first.entropies),
        "advantages": None if first is None else _rounded(first.advantages),
        "updates": [
            {"policy": u.policy, "batch": u.batch, "step": u.step, "version": u.version}
            for u in updates
        ],
    }


def _rounded(values: npt.NDArray[np.float32] | None) -> list[float] | None:
    return None if values is None else np.round(values[:MOST_TOKENS].astype(float), 5).tolist()
