"""docs/processes.md says all that a service of one's own has to know of what is sent."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import pytest
from from_the_page import clients
from served_dataflow import TOKEN, flows
from workspace import ROOT

from astraflow_core.types.named_rewards import NAMED_REWARD_COLUMNS
from astraflow_core.types.turns import TURN_COLUMNS
from astraflow_core.types.units import UNIT_COLUMNS
from astraflow_runtime.dataflow.http.service import DataflowService
from astraflow_runtime.dataflow.http.wakeups import Wakeups
from astraflow_wire.column_table import ROW_COLUMNS, SOURCE_COLUMNS, TOKEN_COLUMNS
from astraflow_wire.http.server import Server
from astraflow_wire.status import Status

PAGE = clients.Page((ROOT / "docs" / "processes.md").read_text(encoding="utf-8"))
STEPS = 3
pytestmark = pytest.mark.timeout(60)


def test_the_services_import_nothing_of_ours() -> None:
    tree = ast.parse(Path(clients.__file__).read_text(encoding="utf-8"))
    found = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert found == {
        "__future__",
        "httpx",
        "json",
        "msgpack",
        "numpy",
        "re",
        "struct",
        "time",
        "typing",
    }


def test_the_page_has_the_columns_of_the_table() -> None:
    for title, columns in {
        "Columns of tokens": TOKEN_COLUMNS,
        "Columns of rows": ROW_COLUMNS,
        "Columns of units": UNIT_COLUMNS,
        "Columns of turns": TURN_COLUMNS,
        "Columns of named rewards": NAMED_REWARD_COLUMNS,
        "Column of borrowed rows": SOURCE_COLUMNS,
    }.items():
        expected = [(column.name, column.raw) for column in columns]
        assert [(n, dtype) for n, (dtype, _) in PAGE.columns(title).items()] == expected


def test_a_raas_and_a_trainer_made_of_the_page_bring_a_run_to_its_end() -> None:
    batches, raas, status = asyncio.run(_run())
    assert status.state == "finished" and status.invariants_ok
    assert len(batches) == STEPS and raas.pushed >= STEPS
    for step, batch in enumerate(batches):
        assert (batch["policy"], batch["version"], batch["rows"]) == ("solver", step, 4)
        columns = batch["columns"]
        assert columns["lengths"].tolist() == [5] * 4
        assert columns["tokens"].tolist() == [*clients.PROMPT, *clients.SAMPLED] * 4
        assert columns["loss_mask"].tolist() == [0, 0, 0, 1, 1] * 4
        assert columns["logprobs"].tolist() == [0, 0, 0, -0.5, -0.25] * 4
        ages = [step - version for version in columns["versions"].tolist() if version != -1]
        assert len(ages) == 8 and min(ages) >= 0 and max(ages) <= 1
        assert columns["rewards"].tolist() == [0.0, 1.0] * 2
        assert columns["group_mean"].tolist() == [0.5] * 4
        assert columns["trained_tokens"].tolist() == [4] * 4
        assert columns["of turns"]["last"].tolist() == [4] * 4
        assert columns["of turns"]["trajectory"].tolist() == columns["trajectory"].tolist()
        assert columns["of turns"]["outcome"].tolist() == [0.0, 1.0] * 2
        assert len(set(columns["group"].tolist())) == 2
        assert len(set(columns["trajectory"].tolist())) == 4


async def _run() -> tuple[list[dict[str, Any]], clients.Raas, Status]:
    wakeups = Wakeups()
    bench = flows.make_bench(
        flows.make_config(run__steps=STEPS, run__max_staleness=1, policy__batch_sequences=4),
        signals=wakeups,
    )
    app = DataflowService(bench.flow, wakeups, TOKEN).app
    async with Server(app, "127.0.0.1", 0) as server:
        raas, trainer = (kind(PAGE, server.url, TOKEN) for kind in (clients.Raas, clients.Trainer))
        batches, _ = await asyncio.gather(
            asyncio.to_thread(trainer.run), asyncio.to_thread(raas.run)
        )
        return batches, raas, bench.flow.status()
