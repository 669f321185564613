"""A Slurm cluster for the tests: munged, slurmctld and two slurmd of Debian's packages on this machine, as root."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from astraflow_testing.debian import program

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
INSTALL = ("apt-get", "install", "-y", "--no-install-recommends", *PACKAGES)
INSTALL_S = 170
DEADLINE_S = 30.0
NODES = ("one", "two")
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,batch_sched_delay=0,sched_min_interval=0,bf_interval=1
KillWait=3
GresTypes=gpu
{nodes}
PartitionName=main Nodes=one,two Default=YES MaxTime=INFINITE State=UP PreemptMode=REQUEUE
"""


@dataclass(frozen=True)
class LocalSlurm:
    """``config``: what SLURM_CONF names."""

    config: Path
    folder: Path


def _installed() -> None:
    """Install the packages, once, if they are not there."""
    with Path(f"/tmp/astraflow-slurm-{os.getuid()}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        wanted = ("slurmctld", "slurmd", "sbatch", "munged")
        if not all(map(program, wanted)) and os.geteuid() == 0 and shutil.which("apt-get"):
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for command in (("apt-get", "update", "-q"), INSTALL):
                subprocess.run(
                    command, env=environment, timeout=INSTALL_S, check=False, capture_output=True
                )
    missing = [name for name in wanted if program(name) is None]
    assert not missing and os.geteuid() == 0, (
        f"these tests need {', '.join(missing) or 'to run as root'}: {' '.join(INSTALL)} (as root, on Debian)"
    )


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)
        ]
        return [int(server.getsockname()[1]) for server in servers]


def _nodes(ports: list[int]) -> str:
    return "\n".join(
        f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.{index + 2} Port={port} CPUs=4 "
        f"RealMemory=4000 Gres=gpu:2 Features=fast,{name}"
        for index, (name, port) in enumerate(zip(NODES, ports, strict=True))
    )


@contextmanager
def local_slurm() -> Iterator[LocalSlurm]:
    """Nodes ``one`` and ``two``. Their GPUs are device files that are no GPUs."""
    _installed()
    folder = Path(
        tempfile.mkdtemp(prefix="astraflow-slurm-")
    )  # munged wants parents that nobody else can change
    ports = _free_ports(3)
    for name in ("munge", "state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir(mode=0o700)
    config = folder / "slurm.conf"
    config.write_text(
        _CONFIG.format(
            host=socket.gethostname(), folder=folder, ports=ports, nodes=_nodes(ports[1:])
        )
    )
    (folder / "gres.conf").write_text(
        "AutoDetect=off\nNodeName=one,two Name=gpu File=/dev/null,/dev/zero\n"
    )
    key = folder / "munge/key"
    key.touch(0o400)
    key.write_bytes(os.urandom(1024))
    munge = [
        f"--{name}={folder}/munge/{name}"
        for name in ("socket", "pid-file", "log-file", "seed-file")
    ]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *munge],
        ["slurmctld", "-D", "-c", "-f", str(config)],
        *(["slurmd", "-D", "-N", node, "-f", str(config)] for node in NODES),
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for number, (name, *options) in enumerate(commands):
            with (folder / f"{number}-{name}.log").open("wb") as log:
                running.append(
                    subprocess.Popen(
                        [str(program(name)), *options],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                )
            if name == "munged":
                _until(lambda: (folder / "munge/socket").exists(), folder)
        _until(lambda: _idle(config) == set(NODES), folder)
        yield LocalSlurm(config, folder)
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _idle(config: Path) -> set[str]:
    done = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--states=idle", "--responding", "--format=%N"],
        env={**os.environ, "SLURM_CONF": str(config)}, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    return set(done.stdout.split())


def _until(holds: object, folder: Path) -> None:
    assert callable(holds)
    end = time.monotonic() + DEADLINE_S
    while not holds():
        logs = "\n".join(file.read_text(errors="replace")[-2000:] for file in folder.glob("*.log"))
        assert time.monotonic() < end, logs
        time.sleep(0.1)
