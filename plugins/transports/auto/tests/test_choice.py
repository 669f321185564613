"""Which transport is chosen from which facts, and what a run says of it."""

from __future__ import annotations

import json
import os
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.errors import PluginError
from astraflow_core.types import (
    Announcement,
    ExportedTensor,
    Link,
    TransportChoice,
    TransportEnds,
)
from astraflow_plugin_auto import surroundings
from astraflow_plugin_auto.choice import LEAST_SHARED, TransportFacts, choose
from astraflow_plugin_auto.earlier import measured
from astraflow_plugin_auto.estimate import FAST_MB_S
from astraflow_plugin_auto.surroundings import BANDWIDTH
from astraflow_runtime.config.auto_transport import Joined
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.config.saved import as_comments
from astraflow_testing.runs import TABLE_RUN
from astraflow_weights.fetch.probe import probe
from astraflow_weights.publish.publisher import HttpPublisher

ALL = {
    "http": frozenset({"full", "adapter", "cross_host"}),
    "delta": frozenset({"full", "delta", "cross_host"}),
    "shm": frozenset({"full", "adapter", "same_host"}),
    "zmq": frozenset({"full", "adapter", "cross_host"}),
    "disk": frozenset({"full", "cross_host"}),
    "collective": frozenset({"full", "collective", "cross_host"}),
    "cuda_ipc": frozenset({"full", "ipc", "same_host"}),
}
ENDS = TransportEnds(
    same_host=True,
    shared_devices=False,
    host=None,
    engine=frozenset({"weights.path", "weights.collective", "weights.ipc"}),
    trainer=frozenset(),
    transports=ALL,
)
HERE = TransportFacts("vllm", "fsdp", ENDS, gpus=True, shared_bytes=LEAST_SHARED)


def facts(**changes: Any) -> TransportFacts:
    """``HERE`` with changes to it or to its ends."""
    own = {key: value for key, value in changes.items() if key in TransportFacts.__slots__}
    ends = replace(HERE.ends, **{k: v for k, v in changes.items() if k not in own})
    return replace(HERE, **own, ends=ends)


def without(*names: str) -> dict[str, frozenset[str]]:
    return {name: flags for name, flags in ALL.items() if name not in names}


def told(transport: str, size: int = 1 << 30) -> Announcement:
    return Announcement("solver", 3, transport, ("http://10.0.0.7:1",), "", size)


AWAY = {"same_host": False, "host": "10.0.0.7"}
PATH = frozenset({"weights.path"})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"shared_devices": True}, "cuda_ipc"),
        ({}, "collective"),
        ({"gpus": False}, "shm"),
        ({"shared_devices": True, "gpus": False}, "shm"),
        ({"engine": "vllm", "transports": without("collective")}, "shm"),
        ({"gpus": False, "shared_bytes": LEAST_SHARED - 1}, "http"),
        ({"gpus": False, "transports": without("shm")}, "http"),
        ({"gpus": False, "transports": without("shm", "http")}, "zmq"),
        (AWAY, "delta"),
        ({**AWAY, "link": Link(FAST_MB_S - 1, 0.3)}, "delta"),
        ({**AWAY, "link": Link(FAST_MB_S, 0.3)}, "http"),
        ({**AWAY, "link": Link(100.0, 0.3), "model_bytes": 14 << 30}, "delta"),
        ({**AWAY, "link": Link(100.0, 0.3), "model_bytes": 1 << 20}, "http"),
        ({**AWAY, "announced": told("delta")}, "delta"),
        ({**AWAY, "announced": told("delta"), "link": Link(900.0, 0.001)}, "http"),
        ({**AWAY, "announced": told("http"), "link": Link(1.0, 0.3)}, "http"),
        ({**AWAY, "announced": told("zmq"), "link": Link(1.0, 0.3)}, "zmq"),
        ({"announced": told("collective"), "gpus": False}, "http"),
        ({"same_host": False, "announced": told("delta")}, "delta"),
        ({**AWAY, "transports": without("delta")}, "http"),
        ({**AWAY, "trainer": frozenset({"lora"})}, "http"),
        ({**AWAY, "transports": without("delta", "http")}, "zmq"),
    ],
)
def test_the_first_rule_that_holds_is_taken(changes: dict[str, Any], expected: str) -> None:
    if "trainer" in changes:
        flags = changes.pop("trainer")
        asked = replace(facts(**changes), ends=replace(facts(**changes).ends, trainer=flags))
    elif "engine" in changes:
        changes.pop("engine")
        asked = replace(facts(**changes), ends=replace(facts(**changes).ends, engine=PATH))
    else:
        asked = facts(**changes)
    chosen = choose(asked)
    assert isinstance(chosen, TransportChoice)
    assert chosen.use == expected and len(chosen.why.split()) > 4
    wide = {"host": "0.0.0.0", "advertise": "10.0.0.7"} if "host" in changes else {}
    assert "e+" not in chosen.why
    assert dict(chosen.options) == wide


def test_obstacles_are_reported_for_each() -> None:
    asked = replace(HERE, ends=replace(ENDS, engine=frozenset(), transports=without("shm")))
    reasons = choose(asked)
    assert isinstance(reasons, list)
    text = "\n".join(reasons)
    assert "cuda_ipc: trainer and engine do not share devices" in text
    assert "collective: engine 'vllm' lacks weights.collective" in text
    assert "shm: not installed (pip install astraflow-plugin-shm)" in text
    assert "http: engine 'vllm' lacks weights.path" in text
    nowhere = choose(replace(HERE, ends=replace(ENDS, same_host=False)))
    assert nowhere == ["the launcher has not placed the trainer yet"]


def test_the_reason_names_the_link_and_what_a_version_would_cost() -> None:
    fourteen = facts(**AWAY, link=Link(23.0, 0.3), how="measured now", model_bytes=14_000_000_000)
    chosen = choose(fourteen)
    assert isinstance(chosen, TransportChoice)
    assert chosen.use == "delta"
    assert chosen.why == (
        "RaaS may be on other hosts, over links of at least 23 MB/s and 300 ms (measured now): "
        "14 GB take at most 609 s whole and about 34 s by a delta"
    )
    refused = choose(facts(**AWAY, announced=told("disk")))
    assert isinstance(refused, list) and all("publisher uses 'disk'" in why for why in refused)


AUTO_RUN = TABLE_RUN.replace('transport = { use = "http" }', 'transport = { use = "auto" }')


def test_a_run_names_what_was_chosen_and_why(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(AUTO_RUN)
    loaded = load_config(file)
    use = loaded.config.policies["solver"].transport.use
    assert use in ("shm", "http")
    (note,) = loaded.notes
    assert note.startswith(f"policies.solver.transport: 'auto' chose {use!r}, because trainer and")
    assert loaded.components["policies.solver.transport"][0].component.name == use
    assert as_comments(loaded.notes) == f"# {note}\n"


def test_a_dataflow_that_others_reach_makes_the_publisher_reachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "run.toml"
    file.write_text(AUTO_RUN)
    monkeypatch.setenv(BANDWIDTH, "1000")
    loaded = load_config(file, ['dataflow.host="10.1.2.3"'])
    table = loaded.config.policies["solver"].transport
    assert (table.use, table.model_extra) == (
        "http",
        {"host": "0.0.0.0", "advertise": "10.1.2.3"},
    )
    for wrong in ("fast", "-1", "nan", "inf"):
        monkeypatch.setenv(BANDWIDTH, wrong)
        with pytest.raises(PluginError, match="expected MB/s"):
            load_config(file)


def earlier_run(folder: Path, name: str, at: int, host: str, pull_mb: float, pull_s: float) -> None:
    """The files of an earlier run that auto reads, last changed at ``at``."""
    run = folder / name
    run.mkdir(parents=True)
    transport = f'{{ use = "http", host = "0.0.0.0", advertise = "{host}" }}'
    (run / "config.toml").write_text(f"[policies.solver]\ntransport = {transport}\n")
    lines = [
        {"policy": "solver", "refresh": {"swaps": 3, "pull_mb": pull_mb, "pull_s": 2 * pull_s}},
        {"policy": "solver", "refresh": {"swaps": 5, "pull_mb": pull_mb, "pull_s": pull_s}},
        {"policy": "other", "refresh": {"swaps": 9, "pull_mb": 1e6, "pull_s": 1.0}},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (run / "metrics.jsonl").write_text(text + '{"policy": "sol')
    os.utime(run / "metrics.jsonl", (at, at))


def test_a_link_that_a_run_measured_is_better_than_its_mean_fetch(tmp_path: Path) -> None:
    earlier_run(tmp_path, "deltas", 100, "10.1.2.3", 0.2, 0.5)
    metrics = tmp_path / "deltas" / "metrics.jsonl"
    refresh = {"swaps": 5, "pull_mb": 0.2, "pull_s": 0.5, "link_mb_s": 23.0, "link_s": 0.3}
    metrics.write_text(json.dumps({"policy": "solver", "refresh": refresh}) + "\n")
    assert measured(tmp_path, "10.1.2.3") == (Link(23.0, 0.3), "measured in run 'deltas'")
    assert measured(tmp_path, "10.9.9.9") is None


def test_the_rate_of_earlier_fetches_is_used_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BANDWIDTH, raising=False)
    file, runs = tmp_path / "run.toml", tmp_path / "runs"
    file.write_text(AUTO_RUN)
    away = ['dataflow.host="10.1.2.3"', f'run.directory="{runs}"']

    def chosen() -> tuple[str, str]:
        loaded = load_config(file, away)
        return loaded.config.policies["solver"].transport.use, loaded.notes[0]

    assert measured(runs, "10.1.2.3") is None
    assert "of unknown bandwidth" in chosen()[1]
    earlier_run(runs, "elsewhere", 900, "10.9.9.9", 100.0, 0.1)
    earlier_run(runs, "small", 800, "10.1.2.3", 1.0, 0.001)
    assert "of unknown bandwidth" in chosen()[1]
    earlier_run(runs, "slow", 500, "10.1.2.3", 80.0, 2.0)
    use, note = chosen()
    assert use == "delta" and "of at least 40 MB/s (5 fetches of 80 MB in run 'slow')" in note
    earlier_run(runs, "fast", 600, "10.1.2.3", 900.0, 1.0)
    use, note = chosen()
    assert use == "http" and "of at least 900 MB/s (5 fetches of 900 MB in run 'fast')" in note
    monkeypatch.setenv(BANDWIDTH, "30")
    assert f"of at least 30 MB/s (as {BANDWIDTH} says)" in chosen()[1]
    for name in ("slow", "fast"):
        (runs / name / "metrics.jsonl").write_bytes(b"\xff\n[]\n{}\n")
    monkeypatch.delenv(BANDWIDTH)
    assert "of unknown bandwidth" in chosen()[1]


def test_a_process_that_joins_measures_the_publisher_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BANDWIDTH, raising=False)
    monkeypatch.setattr(surroundings, "probe", partial(probe, longest_s=30))
    file, token = tmp_path / "run.toml", "a-token-of-the-run"
    file.write_text(AUTO_RUN)
    away = ['dataflow.host="10.1.2.3"', f'run.directory="{tmp_path / "runs"}"']

    def chosen(published: Announcement, token: str) -> tuple[str, str]:
        joined = Joined({"solver": published}, token)
        loaded = load_config(file, away, joining=lambda config: joined)
        return loaded.config.policies["solver"].transport.use, loaded.notes[0]

    server = HttpPublisher("solver", token, host="127.0.0.1", port=0, advertise=None)
    with closing(server):
        data = np.zeros(6 << 20, np.uint8)
        manifest = server.publish(3, [ExportedTensor("a", "U8", data.shape, data)])
        at = server.endpoints
        published = Announcement("solver", 3, "http", at, manifest.digest, manifest.size)
        use, note = chosen(published, token)
        assert use == "http" and "ms (measured now): 6.3 MB take at most" in note
        for speaks, expected in (("delta", "delta"), ("zmq", "zmq")):
            use, note = chosen(replace(published, transport=speaks), "another")
            assert use == expected
        monkeypatch.setenv(BANDWIDTH, "900")
        use, note = chosen(replace(published, transport="delta"), "another")
        assert use == "http" and f"900 MB/s (as {BANDWIDTH} says): 6.3 MB" in note
        monkeypatch.delenv(BANDWIDTH)
    use, note = chosen(replace(published, transport="delta"), token)
    assert use == "delta" and "of unknown bandwidth (not measured: http://127.0.0.1:" in note
    with pytest.raises(PluginError, match="the publisher uses 'disk'"):
        chosen(replace(published, transport="disk"), token)


def test_without_the_plugin_auto_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(AUTO_RUN + '\n[plugins]\ndisable = ["auto"]\n')
    with pytest.raises(Exception, match=r"install one \("):
        load_config(file)
