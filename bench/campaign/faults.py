"""The faults of a run, by seed, and whether the seconds of recovery count from the end of a fault."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from astraflow_runtime.dataflow.journal.entry_log import ENTRIES
from astraflow_runtime.dataflow.journal.flushed import read_flushed
from bench.campaign.job import POLICIES, Job, RunEnded
from bench.campaign.links import Link

ACTED_S, REFUSED_S = 30.0, 60.0
Fault = Callable[[Job, random.Random], None]


def victim(job: Job, role: str) -> int:
    """The pid of a role, which may just be starting."""
    return job.wait(lambda: job.present()[role], f"a process {role}")


def kill(role: str) -> Fault:
    """`kill -9`."""

    def act(job: Job, chance: random.Random) -> None:
        os.kill(victim(job, role), signal.SIGKILL)

    return act


def pause(role: str) -> Fault:
    """SIGSTOP, and SIGCONT after up to twice a lease."""

    def act(job: Job, chance: random.Random) -> None:
        with stopped([victim(job, role)]):
            time.sleep(chance.uniform(0.3, 4.0))

    return act


def suspend(job: Job, chance: random.Random) -> None:
    """All processes stop for longer than a lease, as on a machine that sleeps; then all clocks have jumped."""
    assert job.far is not None
    with stopped([*job.pids(), job.far.pid]):
        time.sleep(chance.uniform(2.5, 5.0))


@contextlib.contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    """Stop the processes (SIGSTOP) while the block runs."""
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def full_disk(role: str) -> Fault:
    """No file of the process can grow for a while."""

    def act(job: Job, chance: random.Random) -> None:
        pid = victim(job, role)
        with contextlib.suppress(ProcessLookupError):
            hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
            time.sleep(chance.uniform(0.5, 3.0))
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    return act


def damaged_checkpoint(job: Job, chance: random.Random) -> None:
    """The newest checkpoint of a trainer is cut off or has a bit flipped, and the trainer is killed."""
    policy = chance.choice(POLICIES)
    folder = job.directory / "checkpoints" / policy
    job.wait(lambda: len(list(folder.glob("update-*"))) > 1, f"two checkpoints of {policy}")
    trainer = victim(job, f"trainer_{policy}")
    with stopped([trainer]):
        newest = sorted(folder.glob("update-*"))[-1]
        damage(newest / "table.safetensors", chance, 0)
        os.kill(trainer, signal.SIGKILL)


def damage(file: Path, chance: random.Random, begin: int) -> None:
    """Cut it off, or flip a bit, at a byte from ``begin`` on."""
    size = file.stat().st_size
    at = chance.randrange(begin, size)
    if chance.random() < 0.5:
        os.truncate(file, at)
        return
    with file.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ (1 << chance.randrange(8))]))


def killed_all(job: Job, chance: random.Random) -> None:
    """`kill -9` of the launcher and all its processes; `run --resume`."""
    job.kill_all()
    job.resume()


def power_loss(job: Job, chance: random.Random) -> None:
    """As :func:`killed_all`; besides, what was not flushed of the journal is lost from a random byte on or damaged."""
    job.kill_all()
    journal = job.directory / "journal"
    flushed = read_flushed(journal)
    log = journal / ENTRIES
    if log.stat().st_size > flushed.entries:
        damage(log, chance, flushed.entries)
    job.lost_power()
    job.resume()


def corrupted_journal(job: Job, chance: random.Random) -> None:
    """A bit of the flushed part of the journal flips. The run must report it and exit cleanly; it is resumed after the
    bit has been restored."""
    job.kill_all()
    log = job.directory / "journal" / ENTRIES
    flushed = read_flushed(log.parent).entries
    if flushed:
        at = chance.randrange(flushed)
        sound = log.read_bytes()
        with log.open("r+b") as file:
            file.seek(at)
            file.write(bytes([sound[at] ^ 4]))
        job.resume()
        assert job.launcher is not None
        code = job.launcher.wait(REFUSED_S)
        if code != 1 or str(log) not in job.last_words():
            raise RunEnded(
                f"a damaged journal was to be refused; exit code {code}:\n{job.last_words()}"
            )
        with log.open("r+b") as file:
            file.seek(at)
            file.write(sound[at : at + 1])
    job.resume()


ROLES = (
    "raas", "other_raas", "far_raas", "engine_host", "far_engine_host", "dataflow",
    *(f"trainer_{name}" for name in POLICIES),
)  # fmt: skip
PROCESS_FAULTS: dict[str, tuple[Fault, int]] = {
    **{f"kill_{role}": (kill(role), 3) for role in ROLES},
    **{f"pause_{role}": (pause(role), 2) for role in ROLES},
    **{
        f"full_disk_{role}": (full_disk(role), 2)
        for role in ("dataflow", "trainer_solver", "far_engine_host", "raas")
    },
    "suspend": (suspend, 2),
    "damaged_checkpoint": (damaged_checkpoint, 4),
    "killed_all": (killed_all, 2),
    "power_loss": (power_loss, 3),
    "corrupted_journal": (corrupted_journal, 1),
}
"""Name → what to do and how often, relative to the others."""


def cut(job: Job, link: Link, chance: random.Random) -> None:
    """Every connection of the link breaks, and the data in transit is lost."""
    job.wait(lambda: job.links.cut(link), "a connection of a link", ACTED_S)


def flip(job: Job, link: Link, chance: random.Random) -> None:
    """One bit of what passes next."""
    before = link.flipped
    link.flip(chance)
    job.wait(lambda: link.flipped > before, "a byte on a link", ACTED_S)


def partition(job: Job, link: Link, chance: random.Random) -> None:
    """Nothing passes for a while, though connections stay open."""
    seconds = chance.uniform(0.2, 3.0)
    link.close_for(seconds)
    time.sleep(seconds)


LINK_FAULTS = {"cut": (cut, 10), "flip": (flip, 10), "partition": (partition, 1)}
"""As :data:`PROCESS_FAULTS`, for one of the links."""
