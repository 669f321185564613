"""Two saturating runs on one pool with shares 3 : 1, then a third that floods; all with real processes.

The engine sleeps (:mod:`bench.support.sleeping`): that of the run with the smaller share is twice as fast, so that equal places would
not give equal tokens. Tokens are counted by the dataflow of each run, not by the pool. ``share_error`` is the largest difference of a
run's share of the tokens from its due share, as a part of that; ``share_error_of_places`` is that of places handed out by the weights
alone, without a correction by tokens, as it follows from the two speeds. The third run is one of the tenant with the smaller share: it wants eight RaaS,
and sixteen threads beside it send requests to the pool with its token, half of them malformed. ``isolation_slowdown`` is what the run of
the other tenant loses of its tokens per second then. ``slots_back_s``: from `kill -9` of the launcher of the third until the pool has
its slot back, of which ``run_lease_s`` is the lease.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astraflow_core.errors import AstraFlowError
from astraflow_wire.http.client import SyncClient
from bench.async_overlap import CONFIG
from bench.support.processes import ROOT

POOL = """
[pool]
listen = "127.0.0.1:0"
run_lease_s = 5.0

[host]
slots = 4
places = 32

[tenants.ada]
weight = 3
[tenants.bob]
"""
TOKEN_S = {"ada": 0.03, "bob": 0.015}
WEIGHTS = {"ada": 0.75, "bob": 0.25}
RUN_LEASE_S = 5.0
WARM_S, WINDOW_S = {True: 5.0, False: 20.0}, {True: 10.0, False: 90.0}
START_S = 120.0
FLOODS = 16


@dataclass
class Pool:
    """A pool in ``folder``, and the runs that were started on it."""

    folder: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def astraflow(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command."""
        process = subprocess.Popen(
            [sys.executable, "-m", "astraflow_runtime", *words],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "OMP_NUM_THREADS": "1",
                "ASTRAFLOW_CURVES": "none",
            },
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / f"{words[0]}.log").open("ab"),
            stderr=subprocess.STDOUT,
        )
        self.processes.append(process)
        return process  # fmt: skip

    def run(self, name: str, tenant: str, replicas: int = 1) -> subprocess.Popen[bytes]:
        """Start a run that always has work."""
        text = CONFIG.format(
            batch=256, steps=1_000_000, max_staleness=10_000, token_s=TOKEN_S[tenant], step_s=0.0
        )
        text = text.replace("replicas = 2", f"replicas = {replicas}")
        text = text.replace('name = "overlap"', f'name = "{name}"\nlease_s = 3.0')
        (self.folder / f"{name}.toml").write_text(text)
        keys = ("use=pool", f"url={self.url}", f"token_file={tenant}.token")
        words = (word for key in keys for word in ("--set", f"launcher.{key}"))
        return self.astraflow("run", f"{name}.toml", *words)

    @property
    def url(self) -> str:
        """Where it is served."""
        return str(json.loads((self.folder / "pool" / "pool.json").read_text())["url"])

    def runs(self) -> dict[str, Any]:
        """Its status of the runs, by their names."""
        client = SyncClient(self.url, (self.folder / "pool" / "token").read_text().strip())
        with contextlib.closing(client):
            rows = client.get_json("/v1/status", deadline_s=10)["runs"]
        return {re.sub(r"\w+/|-\d+-\d+$", "", row["run"]): row for row in rows}

    def tokens(self, name: str) -> float:
        """The tokens generated so far, as the dataflow of a run reports them."""
        (directory,) = self.folder.glob(f"runs/{name}-*")
        url = json.loads((directory / "dataflow.json").read_text())["url"]
        client = SyncClient(url, (directory / "token").read_text().strip())
        with contextlib.closing(client):
            return float(client.get_json("/v1/status", deadline_s=10)["tokens_generated"])

    def rates(self, names: tuple[str, ...], seconds: float) -> dict[str, float]:
        """Tokens per second of each run."""
        before, began = {name: self.tokens(name) for name in names}, time.monotonic()
        time.sleep(seconds)
        passed = time.monotonic() - began
        return {name: (self.tokens(name) - before[name]) / passed for name in names}

    def flood(self, ended: threading.Event) -> int:
        """Send requests until ``ended``; how many were answered or refused."""
        token, sent = (self.folder / "bob.token").read_text().strip(), 0
        client = SyncClient(self.url, token)
        with contextlib.closing(client):
            while not ended.is_set():
                with contextlib.suppress(AstraFlowError):
                    client.get_json("/v1/status", deadline_s=5)
                    client.post_bytes("/v1/runs/renew", os.urandom(4096), dict, deadline_s=5)
                sent += 2
                ended.wait(0.2)
        return sent


def measure(quick: bool) -> dict[str, float]:
    """The two runs, then the third beside them."""
    with started() as pool:
        pool.run("ada", "ada")
        pool.run("bob", "bob")
        until(lambda: {"ada", "bob"} <= {n for n, r in pool.runs().items() if works(r)})
        time.sleep(WARM_S[quick])
        rates = pool.rates(("ada", "bob"), WINDOW_S[quick])
        total = sum(rates.values())
        shares = {name: rate / total for name, rate in rates.items()}
        places = {name: WEIGHTS[name] / TOKEN_S[name] for name in WEIGHTS}
        naive = {name: rate / sum(places.values()) for name, rate in places.items()}
        third = pool.run("flood", "bob", replicas=8)
        until(lambda: works(pool.runs().get("flood", {})))
        ended = threading.Event()
        threads = [threading.Thread(target=pool.flood, args=(ended,)) for _ in range(FLOODS)]
        for thread in threads:
            thread.start()
        time.sleep(WARM_S[quick])
        flooded = pool.rates(("ada", "bob", "flood"), WINDOW_S[quick])
        ended.set()
        for thread in threads:
            thread.join()
        os.kill(third.pid, signal.SIGKILL)
        killed = time.monotonic()
        until(lambda: not pool.runs()["flood"]["raas"])
        back_s = time.monotonic() - killed
    return {
        "share_error": largest_error(shares),
        "share_error_of_places": largest_error(naive),
        "share_of_the_larger": shares["ada"],
        "isolation_slowdown": 1 - flooded["ada"] / rates["ada"],
        "share_of_the_larger_flooded": flooded["ada"] / sum(flooded.values()),
        "others_of_its_tenant": flooded["bob"] / (flooded["bob"] + flooded["flood"]),
        "tokens_per_s": total,
        "tokens_per_s_flooded": sum(flooded.values()),
        "slots_back_s": back_s,
        "run_lease_s": RUN_LEASE_S,
        "window_s": WINDOW_S[quick],
    }


def largest_error(shares: dict[str, float]) -> float:
    """Of shares, as a part of what is due."""
    return max(abs(shares[name] - due) / due for name, due in WEIGHTS.items())


def works(run: dict[str, Any]) -> bool:
    """Whether a run has generated something."""
    return bool(run.get("tokens"))


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + START_S
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {START_S:g} s")
        time.sleep(0.2)


@contextlib.contextmanager
def started() -> Iterator[Pool]:
    """A pool with its own host."""
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(Path(folder))
        (pool.folder / "pool.toml").write_text(POOL)
        for tenant in WEIGHTS:
            with (pool.folder / f"{tenant}.token").open("w") as file:
                command = [
                    sys.executable,
                    "-m",
                    "astraflow_runtime",
                    "pool",
                    "token",
                    "pool.toml",
                    tenant,
                ]
                subprocess.run(command, cwd=folder, check=True, stdout=file)  # fmt: skip
        pool.astraflow("pool", "start", "pool.toml")
        try:
            until((pool.folder / "pool" / "pool.json").exists)
            yield pool
        finally:
            for process in reversed(pool.processes):
                process.terminate()
                process.terminate()
            for process in reversed(pool.processes):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                process.kill()
                process.wait()
