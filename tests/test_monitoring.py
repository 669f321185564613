"""What `examples/monitoring` has for Prometheus and Grafana works on what a dataflow exports."""

from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_listeners import TOKEN, running
from workspace import ROOT

from astraflow_runtime.dataflow.http.exporter import exporter
from astraflow_runtime.raas.monitor import monitor_app
from astraflow_serving.child_server import free_port
from astraflow_wire.policy_status import EpisodeMean, PolicyStatus
from astraflow_wire.status import (
    EvaluationResult,
    EvaluationStatus,
    RaasStatus,
    SetResult,
    Status,
)

FOLDER = ROOT / "examples" / "monitoring"
DEBIAN_PACKAGE = "prometheus"
INSTALL_S, DEADLINE_S = 170, 60


def status() -> Status:
    """One with a value for everything that is exported."""
    metrics = dict.fromkeys(
        ("loss", "grad_norm", "entropy_estimate", "approx_kl", "clip_fraction", "probe_mean"), 0.01
    )
    policy = PolicyStatus(
        version=3, updates=3, reward=0.5, trained_reward=0.5, trainer_wait_fraction=0.1,
        reward_std=0.1, completion_length_mean=10.0, completion_length_max=20,
        truncated_fraction=0.1, equal_groups_fraction=0.1, pass_rate=0.5, metrics=metrics,
        episode_metrics={"calls": EpisodeMean(mean=2.0)},
    )  # fmt: skip
    return Status(
        state="running",
        policies={"solver": policy},
        raas=[RaasStatus(name="raas-0", state="alive", metrics={"cpu_s": 1.0})],
        rejected={"all rewards equal": 1},
        environment_failures={"crash": 1},
        eval=EvaluationStatus(
            history=[
                EvaluationResult(versions={"solver": 3}, sets={"held_out": SetResult(avg=1.0)})
            ]
        ),
    )


def dashboard() -> list[str]:
    """The expressions of all panels."""
    panels = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))["panels"]
    return [target["expr"] for panel in panels for target in panel["targets"]]


def test_every_metric_that_is_named_is_exported() -> None:
    exported = set(re.findall(r"^(astraflow_\w+)", exporter(status)().decode(), re.MULTILINE))
    texts = [*dashboard(), (FOLDER / "alerts.yml").read_text(encoding="utf-8")]
    named = {name for text in texts for name in re.findall(r"astraflow_[a-z_]+", text)}
    assert len(named) > 15
    assert named <= exported


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with `prometheus` and `promtool`, those of PATH or of Debian's package, which needs no installing."""
    found = shutil.which("promtool")
    if found is not None and shutil.which("prometheus") is not None:
        return Path(found).parent
    folder = tmp_path_factory.getbasetemp().parent / "astraflow-prometheus"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if not (folder / "usr").exists():
            _unpack(folder)
    return folder / "usr" / "bin"


def _unpack(folder: Path) -> None:
    for command in (
        ["apt-get", "update", "-q"],  # without root it fails, and the lists that are there serve
        ["apt-get", "download", "-q", DEBIAN_PACKAGE],
    ):
        done = subprocess.run(
            command, cwd=folder, timeout=INSTALL_S, check=False, capture_output=True, text=True
        )
    files = list(folder.glob("*.deb"))
    assert files, (
        f"these tests need promtool and prometheus on PATH, or {DEBIAN_PACKAGE} of Debian: {done.stderr}"
    )
    subprocess.run(["dpkg", "-x", files[0], folder / "new"], timeout=INSTALL_S, check=True)
    (folder / "new" / "usr").rename(folder / "usr")


def promtool(programs: Path, *arguments: str, **how: Any) -> None:
    done = subprocess.run(
        [programs / "promtool", *arguments],
        cwd=how.pop("cwd", FOLDER),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        **how,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.backend
def test_promtool_finds_nothing_wrong(programs: Path, tmp_path: Path) -> None:
    promtool(programs, "test", "rules", "alerts_test.yml")
    here = tmp_path / "monitoring"
    shutil.copytree(FOLDER, here)
    (here / "token").write_text("secret")
    promtool(programs, "check", "config", "prometheus.yml", cwd=here)


@contextmanager
def prometheus(programs: Path, folder: Path, target: int) -> Iterator[httpx.Client]:
    """A server with the shipped configuration, except that it scrapes ``target`` each second."""
    shutil.copytree(FOLDER, folder)
    (folder / "token").write_text(TOKEN)
    file = folder / "prometheus.yml"
    text = file.read_text(encoding="utf-8")
    assert "127.0.0.1:8420" in text and "15s" in text
    file.write_text(text.replace("127.0.0.1:8420", f"127.0.0.1:{target}").replace("15s", "1s"))
    port = free_port(None)
    command = [
        programs / "prometheus",
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as server:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S) as client:
                yield client
        finally:
            server.terminate()
            server.wait(DEADLINE_S)


@pytest.mark.backend
def test_a_real_prometheus_has_data_for_every_panel_and_no_alert(
    programs: Path, tmp_path: Path
) -> None:
    def answered(client: httpx.Client, expression: str) -> list[Any]:
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                reply = client.get("/api/v1/query", params={"query": expression})
                answer = reply.raise_for_status().json()
                assert answer["status"] == "success", answer
                if answer["data"]["result"] or time.monotonic() > end:
                    found: list[Any] = answer["data"]["result"]
                    return found
            except (httpx.TransportError, httpx.HTTPStatusError):  # it starts
                assert time.monotonic() < end, (tmp_path / "monitoring" / "log").read_text()
            time.sleep(0.2)

    metrics = exporter(status)
    app = monitor_app(TOKEN, lambda: True, dict, dict, metrics)
    with (
        running(app, []) as listener,
        prometheus(programs, tmp_path / "monitoring", listener.port) as client,
    ):
        assert answered(client, 'up{run="my-run"} == 1')
        for expression in dashboard():
            asked = expression.replace("$run", ".*").replace("$__rate_interval", "10s")
            assert answered(client, asked), expression
        rules = client.get("/api/v1/rules").json()["data"]["groups"][0]["rules"]
        assert len(rules) == 10
        assert [rule["name"] for rule in rules if rule.get("lastError")] == []
        alerts = client.get("/api/v1/alerts").json()["data"]["alerts"]
        assert [alert for alert in alerts if alert["state"] == "firing"] == []
