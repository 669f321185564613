"""``astraflow policy`` against a dataflow that listens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from astraflow_core.errors import Refused
from astraflow_runtime.cli import main
from astraflow_wire.http.server import Server, create_app, read_message, reply
from astraflow_wire.messages import PolicySwapped, SwapPolicy

TOKEN = "t" * 32


class Flow:
    """Takes swaps, and refuses those of ``nobody``."""

    def __init__(self) -> None:
        self.got: list[SwapPolicy] = []
        self.app = create_app("dataflow", TOKEN, 1 << 20)
        self.app.router.add_route("/v1/data_policies/swap", self.swap, methods=["POST"])

    async def swap(self, request):
        message = await read_message(request, SwapPolicy)
        if message.name == "nobody":
            raise Refused(400, "'prompts' has no data policy 'nobody'; it has 'greso'")
        self.got.append(message)
        return reply(PolicySwapped(number=len(self.got), table=message.table or {"use": "before"}))


def told(*argv: str, folder: Path) -> tuple[int, list[SwapPolicy]]:
    def command() -> int:
        return main(["data-policy", *argv, "--run", str(folder)])

    async def play():
        flow = Flow()
        server = Server(flow.app, "127.0.0.1", 0)
        await server.start()
        try:
            (folder / "dataflow.json").write_text(json.dumps({"url": server.url, "pid": 1}))
            (folder / "token").write_text(TOKEN)
            async with asyncio.timeout(30):
                code = await asyncio.to_thread(command)
        finally:
            await server.stop()
        return code, flow.got

    return asyncio.run(play())


def test_a_swap_tells_table_author_and_time(tmp_path, capsys):
    table = '{ use = "greso", floor_hard = 0.1 }'
    words = ("prompts", "greso", table, "--author", "ada")
    code, (got,) = told("swap", *words, folder=tmp_path)
    assert code == 0
    assert (got.place, got.name, got.author) == ("prompts", "greso", "ada")
    assert got.table == {"use": "greso", "floor_hard": 0.1}
    assert got.at > 1.7e9
    assert 'swap 1: greso of prompts has use = "greso", floor_hard = 0.1' in capsys.readouterr().out


def test_a_rollback_sends_no_table_and_each_message_is_its_own(tmp_path):
    _, (first,) = told("rollback", "solver", "replay", folder=tmp_path)
    _, (second,) = told("rollback", "solver", "replay", folder=tmp_path)
    assert first.table == {}
    assert first.author
    assert first.id != second.id


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("nobody", '{ use = "greso" }', "it has 'greso'"),
        ("greso", "use = greso", "TABLE is not TOML"),
        ("greso", "{}", "must be a table with use and keys"),
    ],
)
def test_what_is_refused_is_reported(tmp_path, capsys, name, table, said):
    code, got = told("swap", "prompts", name, table, folder=tmp_path)
    assert (code, got) == (2, [])
    assert said in capsys.readouterr().err
