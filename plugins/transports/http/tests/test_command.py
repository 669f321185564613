"""``astraflow weights`` against a publisher that serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astraflow_core.config.models import RunConfig
from astraflow_core.types import ExportedTensor
from astraflow_runtime.cli import main
from astraflow_runtime.config.saved import dump_toml
from astraflow_runtime.dataflow.journal.entries import Announced
from astraflow_runtime.dataflow.journal.entry_log import ENTRIES, encode_record
from astraflow_wire.messages import AnnouncementMessage

TOKEN = "a-token-of-the-run"


def tensors(changed: int = 0) -> list[ExportedTensor]:
    """Two layers of 100 and 300 weights and an embedding; ``changed`` weights of layer 1 are one step up."""
    shapes = {"model.layers.0.w": (100,), "model.layers.1.w": (300,), "embed": (50,)}
    made = {name: np.full(shape, 0x3F80, np.uint16) for name, shape in shapes.items()}
    made["model.layers.1.w"][:changed] += 1
    return [ExportedTensor(name, "BF16", data.shape, data) for name, data in made.items()]


@pytest.fixture
def run(rig: Any, tmp_path: Path) -> Path:
    """The folder of a run that has announced versions 0 to 2; 0 is no longer held."""
    folder, model = tmp_path / "run", tmp_path / "model"
    (folder / "journal").mkdir(parents=True)
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "x"}')
    (model / "model.safetensors").write_bytes(b"the initial weights")
    (folder / "token").write_text(f"~{TOKEN}")  # the secret that the rig's publisher takes
    unused = {"use": "somewhere:Unused"}
    policy = {
        "model": str(model), "trainer": unused, "algorithm": unused, "engine": unused,
        "transport": {"use": "http"}, "batch_sequences": 8,
    }  # fmt: skip
    raw = {
        "run": {"steps": 1, "max_staleness": 1, "group_size": 4},
        "prompts": unused,
        "policies": {"solver": policy},
    }
    (folder / "config.toml").write_text(dump_toml(RunConfig.model_validate(raw)))
    publisher, log = rig.publisher(), b""
    for version, changed in enumerate((0, 0, 30)):
        manifest = publisher.publish(version, tensors(changed), version - 1 if version else None)
        publisher.retain(frozenset({1}))
        message = AnnouncementMessage(
            policy="solver",
            version=version,
            transport="http",
            endpoints=list(publisher.endpoints),
            digest=manifest.digest,
            size=manifest.size,
        )
        log += b"".join(encode_record(Announced(message=message), 1.0))
    (folder / "journal" / ENTRIES).write_bytes(log)
    return folder


def told(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, Any]:
    """The exit code and the output: parsed with ``--json``, else the text of both streams."""
    code = main(["weights", *map(str, argv)])
    printed = capsys.readouterr()
    return code, json.loads(printed.out) if "--json" in argv else printed.out + printed.err


def test_ls_says_what_can_be_fetched(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "ls", "--run", run)
    assert code == 0
    assert "version 0 is not available; available versions: 1, 2" in text
    code, listed = told(capsys, "ls", "--run", run, "--json")
    assert [(v["version"], v["fetchable"], v["derives_from"]) for v in listed["versions"]] == [
        (0, False, None),
        (1, True, 0),
        (2, True, 1),
    ]


def test_diff_counts_by_layer(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, layers = told(capsys, "diff", 1, 2, "--run", run, "--json")
    assert code == 0
    assert {name: layer["changed"] for name, layer in layers.items()} == {
        "embed": 0,
        "model.layers.0": 0,
        "model.layers.1": 30,
        "all": 30,
    }
    p = 0.1
    assert layers["model.layers.1"]["density"] == p
    entropy = -(p * np.log2(p) + (1 - p) * np.log2(1 - p)) / p / 8  # one kind of step costs nothing
    assert layers["model.layers.1"]["bound_bytes_per_changed"] == pytest.approx(entropy)
    assert "6.667%" in told(capsys, "diff", 1, 2, "--run", run)[1]


def test_pull_makes_a_folder_that_verify_accepts(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, read: Any, raw: Any
) -> None:
    folder = tmp_path / "out" / "pulled"
    assert told(capsys, "pull", 2, folder, "--run", run)[0] == 0
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert read(folder / "model.safetensors") == raw(tensors(30))
    assert told(capsys, "verify", 2, folder, "--run", run, "--json")[1]["verified"]
    assert told(capsys, "verify", 2, "--run", run)[0] == 0
    assert told(capsys, "diff", 1, folder, "--run", run, "--json")[1]["all"]["changed"] == 30
    code, text = told(capsys, "verify", 1, folder, "--run", run)
    assert code == 1
    assert "is not version 1 of policy 'solver'" in text
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    assert told(capsys, "verify", 2, folder, "--run", run)[0] == 1
    (folder / "model.safetensors").write_bytes(data[:100])
    assert told(capsys, "verify", 2, folder, "--run", run)[0] == 1


@pytest.mark.parametrize(
    ("argv", "code", "reason"),
    [
        (("ls", "--run", "nowhere"), 2, "no run 'nowhere': it is neither a run directory"),
        (("ls", "--policy", "other"), 2, "the run has no policy 'other'; give --policy; it has solver"),
        (("pull", "9", "OUT"), 2, "has announced no version 9; the newest: 0, 1, 2"),
        (("pull", "2", "RUN"), 2, "exists already"),
        (("pull", "0", "OUT"), 1, "version 0 is not available"),
        (("pull", "x", "OUT"), 2, "invalid int value"),
        (("verify", "2", "OUT"), 2, "is not a safetensors file"),
        (("diff", "2", "RUN/token"), 1, "token is not a safetensors file"),
        (("diff", "2", "--deadline", "0"), 2, "expected seconds above 0"),
    ],
)  # fmt: skip
def test_wrong_input_is_reported(
    run: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    argv: tuple[str, ...],
    code: int,
    reason: str,
) -> None:
    given = [each.replace("RUN", str(run)).replace("OUT", str(tmp_path / "out")) for each in argv]
    where = () if "--run" in argv else ("--run", str(run))
    assert main(["weights", *given, *where]) == code
    assert reason in "".join(capsys.readouterr())
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob("*.partial"))


def test_a_run_without_a_journal_is_reported(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "journal" / ENTRIES).unlink()
    code, text = told(capsys, "ls", "--run", run)
    assert (code, "has no journal" in text) == (2, True)
