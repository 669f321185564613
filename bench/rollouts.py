"""The cost of a run's rollout store: CPU time compared with a run without it, bytes on disk, and the time to read it.

`store_cpu_fraction` is the CPU time of everything that the store does in a quickstart, measured by doing it again with what
the run has stored (texts decoded, records built, compressed and written), as a share of the CPU time of that run.
`pair_cpu_fraction` is the median difference between whole runs with and without the store, which lies below the noise of such
runs where the first figure says so. `bytes_per_rollout` is that of the quickstart, `bytes_per_rollout_8k` of sequences of 8,192
tokens with random ids and log-probs, which hardly compress. `open_s` is how long a store of 10,000 rollouts takes to open,
`page_ms` to read one group of eight such sequences.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from astraflow_core.types import Completion, Group, Prompt, Sequence, Trajectory
from astraflow_runtime.raas.episodes.stored_text import episode_text
from astraflow_runtime.raas.episodes.tokenizer import FolderTokenizer
from astraflow_runtime.rollouts.building import line_of, trajectories
from astraflow_runtime.rollouts.reader import RolloutReader
from astraflow_runtime.rollouts.records import GroupRecord
from astraflow_runtime.rollouts.segments import FOLDER, SegmentWriter, encode
from astraflow_wire.groups import (
    EpisodeCompletion,
    EpisodeText,
    EpisodeTurn,
    ReceivedGroup,
    encode_group,
)
from bench.quickstart import EXAMPLES

GROUP, TOKENS, MANY = 8, 8192, 10_000


def measure(quick: bool) -> dict[str, float]:
    """See above; fractions of the run's CPU time, bytes, seconds and milliseconds."""
    steps, pairs = (10, 1) if quick else (30, 3)
    differences = []
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(pairs):
            cpu = {}
            # In turns, so that a machine that gets busier favours neither.
            for stored in (number % 2, 1 - number % 2):
                run = _run(Path(scratch) / f"{number}-{stored}", steps, stored)
                cpu[stored] = _cpu_s(run)
                if stored:
                    found = _again(run, Path(scratch) / f"again-{number}", cpu[1])
            differences.append((cpu[1] - cpu[0]) / cpu[0])
        found["pair_cpu_fraction"] = statistics.median(differences)
        found["pairs"] = float(pairs)
        found |= _long(Path(scratch) / "long", 4 if quick else 32)
        found |= _many(Path(scratch) / "many")
    return found


def store_cost(folder: Path, steps: int) -> dict[str, float]:
    """`store_cpu_fraction`, `bytes_per_rollout` and others of one quickstart of so many steps, run in ``folder``."""
    run = _run(folder / "run", steps, 1)
    return _again(run, folder / "again", _cpu_s(run))


def _run(folder: Path, steps: int, stored: int) -> Path:
    command = [sys.executable, "-m", "astraflow_runtime", "run", str(EXAMPLES / "quickstart.toml")]
    for override in (
        f"run.steps={steps}",
        f"rollouts.groups_per_step={stored}",
        f"run.directory='{folder}'",
    ):
        command += ["--set", override]
    subprocess.run([*command, "--no-live"], check=True, stdout=sys.stderr, timeout=300)
    (run,) = folder.iterdir()
    return run


def _cpu_s(run: Path) -> float:
    return float(json.loads((run / "summary.json").read_text())["cpu_s"])


def _again(run: Path, scratch: Path, cpu_s: float) -> dict[str, float]:
    """All that the store did in a run, once more."""
    reader = RolloutReader(run)
    groups = [reader.group(name).record for name in reader.group_names]
    updates = list(reader.updates())
    tokenizer = FolderTokenizer(run / "models" / "solver")
    played = [_played(record) for record in groups]
    began = time.process_time()
    writer = SegmentWriter(scratch, "dataflow", 1 << 30)
    for record, group in zip(groups, played, strict=True):
        episodes = [episode_text(each, lambda _: tokenizer.decode) for each in group.trajectories]
        received = ReceivedGroup(encode_group(group, "raas-0", episodes=episodes))
        _write(writer, record_of(record.number, received))
    for update in updates:
        writer.append(line_of(update), encode(update))
    took = time.process_time() - began
    writer.close()
    size = sum(file.stat().st_size for file in (run / FOLDER).iterdir())
    return {
        "store_cpu_fraction": took / cpu_s,
        "ms_per_group": 1e3 * took / len(groups),
        "bytes_per_rollout": size / len(reader),
        "rollouts": float(len(reader)),
        "run_cpu_s": cpu_s,
    }


def _played(record: GroupRecord) -> Group:
    """A stored group as its RaaS had it."""
    return Group(
        record.group,
        record.prompt_id,
        tuple(
            Trajectory(
                tuple(
                    Sequence(s.policy, s.tokens, s.loss_mask, s.logprobs, s.versions)
                    for s in each.sequences
                ),
                tuple(
                    Completion(c.policy, c.text, c.tokens, c.finish_reason)
                    for c in each.completions or ()
                ),
                each.rewards,
            )
            for each in record.trajectories
        ),
    )


def record_of(number: int, received: ReceivedGroup) -> GroupRecord:
    """A pushed group, as it is stored."""
    return GroupRecord(
        number=number,
        group=received.header.task,
        time_s=float(number),
        raas="raas-0",
        prompt_id=received.header.prompt_id,
        prompt_data={"answer": "42"},
        accepted=True,
        trajectories=trajectories(received),
        first_trajectory=number * GROUP,
    )


def _write(writer: SegmentWriter, record: GroupRecord) -> None:
    if not writer.append(line_of(record), encode(record)):
        raise AssertionError("the bound of the benchmark is too small")


def group_of(number: int, tokens: int, generator: np.random.Generator) -> ReceivedGroup:
    """Sequences of random tokens, and texts as long as those of a language model."""
    words = [f"{word:x}" for word in range(4096)]
    played: list[Trajectory] = []
    episodes = []
    for _ in range(GROUP):
        sampled = np.arange(tokens) >= tokens // 8
        sequence = Sequence(
            "solver",
            generator.integers(0, 150_000, tokens).astype(np.int32),
            sampled,
            np.where(sampled, -generator.exponential(0.5, tokens).clip(0, 40), 0).astype(
                np.float32
            ),
            np.where(sampled, 5, -1).astype(np.int32),
        )
        text = " ".join(words[each] for each in generator.integers(0, 4096, tokens))
        played.append(Trajectory((sequence,), (), {"solver": float(generator.random())}))
        turn = EpisodeTurn("assistant", "solver", text, 0, tokens // 8, tokens)
        episodes.append(EpisodeText([turn], [EpisodeCompletion("solver", "stop", 0)]))
    group = Group(f"train-{number}", Prompt(f"p{number}", {}).id, tuple(played))
    return ReceivedGroup(encode_group(group, "raas-0", episodes=episodes))


def _long(run: Path, count: int) -> dict[str, float]:
    generator = np.random.default_rng(0)
    writer = SegmentWriter(run / FOLDER, "dataflow", 8 << 30)
    for number in range(count):
        _write(writer, record_of(number, group_of(number, TOKENS, generator)))
    writer.close()
    size = sum(file.stat().st_size for file in (run / FOLDER).iterdir())
    reader = RolloutReader(run)
    began = time.perf_counter()
    for name in reader.group_names:
        reader.group(name)
    took = time.perf_counter() - began
    return {"bytes_per_rollout_8k": size / (count * GROUP), "page_ms": 1e3 * took / count}


def _many(run: Path) -> dict[str, Any]:
    writer = SegmentWriter(run / FOLDER, "dataflow", 1 << 30)
    received = group_of(0, 32, np.random.default_rng(0))
    for number in range(MANY // GROUP):
        _write(writer, record_of(number, received))
    writer.close()
    began = time.perf_counter()
    reader = RolloutReader(run)
    opened = time.perf_counter() - began
    began = time.perf_counter()
    shown = sum(1 for _ in reader.entries("reward<0.5"))
    return {"open_s": opened, "filter_s": time.perf_counter() - began, "filtered": float(shown)}
