"""``astraflow weights`` on a run of each transport."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import deserialize

from astraflow_core.catalog import Catalog
from astraflow_core.config.load import component_context
from astraflow_core.config.models import RunConfig
from astraflow_core.types import ExportedTensor
from astraflow_runtime.cli import main
from astraflow_runtime.config.saved import dump_toml
from astraflow_runtime.dataflow.journal.entries import Announced
from astraflow_runtime.dataflow.journal.entry_log import ENTRIES, encode_record
from astraflow_wire.messages import AnnouncementMessage

pytestmark = pytest.mark.timeout(120)
TOKEN = "a-token-of-the-run"
TABLES = {
    "http": {},
    "delta": {"kernel": "numpy"},
    "zmq": {},
    "shm": {"directory": "STORE"},
    "disk": {"url": "STORE/versions"},
}
SHAPE = (64, 50)


def weights(changed: int) -> list[ExportedTensor]:
    """A layer of bf16 weights, of which ``changed`` are one step up."""
    data = np.full(SHAPE, 0x3F80, np.uint16)
    data.reshape(-1)[:changed] += 1
    return [ExportedTensor("model.layers.0.w", "BF16", SHAPE, data)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as the socket for notifications needs it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="w-") as made:
        yield Path(made)


def lay_out(folder: Path, table: dict[str, Any]) -> RunConfig:
    """A run directory and a model folder, as `astraflow run` leaves them."""
    run, model = folder / "run", folder / "model"
    (run / "journal").mkdir(parents=True)
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "x"}')
    (run / "token").write_text(TOKEN)
    unused = {"use": "somewhere:Unused"}
    policy = {
        "model": str(model), "trainer": unused, "algorithm": unused, "engine": unused,
        "transport": table, "batch_sequences": 8,
    }  # fmt: skip
    config = RunConfig.model_validate(
        {
            "run": {"steps": 1, "max_staleness": 1, "group_size": 4},
            "prompts": unused,
            "policies": {"solver": policy},
        }
    )
    (run / "config.toml").write_text(dump_toml(config))
    return config


@pytest.mark.parametrize("name", TABLES)
def test_versions_are_listed_verified_compared_and_pulled(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        key: value.replace("STORE", str(folder / "store")) for key, value in TABLES[name].items()
    }
    (folder / "store").mkdir()
    config, run = lay_out(folder, {"use": name, **options}), folder / "run"
    context = component_context(config, run, "trainer", "solver", name, TOKEN)
    table = config.policies["solver"].transport

    def told(*argv: object) -> Any:
        assert main(["weights", *map(str, argv), "--run", str(run), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    with closing(Catalog.discover().build("transport", table, context).publisher()) as publisher:
        log, sizes = b"", []
        for version, changed in ((0, 0), (1, 32)):
            manifest = publisher.publish(
                version, weights(changed), version - 1 if version else None
            )
            publisher.retain(frozenset({0}))
            message = AnnouncementMessage(
                policy="solver",
                version=version,
                transport=name,
                endpoints=list(publisher.endpoints),
                digest=manifest.digest,
                size=manifest.size,
            )
            sizes.append(manifest.size)
            log += b"".join(encode_record(Announced(message=message), 1.0))
        (run / "journal" / ENTRIES).write_bytes(log)

        listed = told("ls")["versions"]
        assert [(each["version"], each["bytes"]) for each in listed] == list(enumerate(sizes))
        assert all(each["fetchable"] is not False for each in listed)
        assert told("verify", 1)["verified"]
        layers = told("diff", 0, 1)
        assert layers["model.layers.0"]["changed"] == layers["all"]["changed"] == 32
        assert layers["all"]["density"] == 0.01
        told("pull", 1, folder / "pulled")
    pulled = folder / "pulled"
    assert sorted(file.name for file in pulled.iterdir()) == ["config.json", "model.safetensors"]
    ((_, entry),) = deserialize((pulled / "model.safetensors").read_bytes())  # type: ignore[no-untyped-call]
    (expected,) = weights(32)
    assert bytes(entry["data"]) == np.asarray(expected.data).tobytes()
    assert told("verify", 1, pulled)["verified"]
