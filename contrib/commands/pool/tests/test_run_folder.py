"""What a host opens in the folder of a run, whose tenant may have put anything there."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_pool.messages import SeatOrder, SeatReport
from astraflow_contrib_pool.raas_process import RaasProcess
from astraflow_contrib_pool.run_folder import OWNER, OwnedRunFolder, digest_of
from astraflow_wire.messages import decode, encode

LAUNCHER = "secret-of-the-launcher"


@dataclass
class OwnFolder:
    path: Path

    def close(self) -> None:
        pass


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text("")
    (folder / OWNER).write_text(digest_of(LAUNCHER) + "\n")
    (folder / "logs").mkdir()
    (folder / "state" / "raas-0").mkdir(parents=True)
    return folder


def ended(run: Path, launcher: str = LAUNCHER, command: list[str] | None = None) -> tuple[int, str]:
    """Exit code and last lines of a RaaS in the folder."""

    async def live() -> tuple[int, str]:
        async def in_thread(call: Callable[[], Any]) -> Any:
            return await asyncio.wait_for(asyncio.to_thread(call), 20)

        own = OwnFolder(run.parent)
        order = SeatOrder(run="ada/r", raas="raas-0", start=1, places=1, directory=str(run), launcher=launcher)  # fmt: skip
        raas = RaasProcess(order, own, 1, 1e5, in_thread, lambda: None)
        if command is not None:
            raas._command = lambda: command  # type: ignore[method-assign]
        await raas.ended()
        report = raas.report()
        return report.exit_code, "\n".join(report.last_lines)

    return asyncio.run(live())


@pytest.mark.parametrize("name", ["logs/raas-0.log", "config.toml", OWNER])
@pytest.mark.parametrize("kind", ["fifo", "link", "device"])
def test_what_is_no_file_ends_the_raas_and_holds_nothing_up(
    run: Path, tmp_path: Path, name: str, kind: str
) -> None:
    (run / name).unlink(missing_ok=True)
    other = tmp_path / "other"
    other.write_text(digest_of(LAUNCHER) + "\nof somebody else\n")
    if kind == "fifo":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to(other if kind == "link" else "/dev/zero")
    code, lines = ended(run, command=["/bin/echo", "must not run"])
    assert code == 2 and "cannot be started" in lines and "regular file" in lines
    assert "somebody else" not in lines and "must not" not in other.read_text()


def test_a_linked_folder_of_logs_is_not_followed(run: Path, tmp_path: Path) -> None:
    (run / "logs").rmdir()
    others = tmp_path / "others"
    others.mkdir()
    (others / "raas-0.log").write_text("of somebody else")
    (run / "logs").symlink_to(others)
    code, lines = ended(run)
    assert code == 2 and "somebody else" not in lines
    assert OwnedRunFolder(str(run)).end_of_log("raas-0") == ""


def test_a_folder_of_another_launcher_is_left_alone(run: Path) -> None:
    (run / "logs" / "raas-0.log").write_text("of ada")
    code, lines = ended(run, "guessed")
    assert code == 2 and "belongs to another launcher" in lines and "of ada" not in lines
    (run / OWNER).unlink()
    assert ended(run, "guessed")[0] == 2


def test_its_own_log_is_written_and_its_end_read(run: Path) -> None:
    assert ended(run, command=["/bin/echo", "hello"]) == (0, "hello")


@pytest.mark.parametrize(
    "text", ["[]", '{"pid": PID}', '{"url": 1, "pid": PID}', '{"url": "http://[", "pid": PID}', "[" * 4000, "x" * 5000]
)  # fmt: skip
def test_a_malformed_address_is_reported_once_and_the_raas_continues(
    run: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def look_twice() -> None:
        async def in_thread(call: Callable[[], Any]) -> Any:
            return call()

        order = SeatOrder(run="ada/r", raas="raas-0", start=1, places=1, directory=str(run), launcher="x")  # fmt: skip
        raas = RaasProcess(order, OwnFolder(run.parent), 1, 1e5, in_thread, lambda: None)
        await raas.ended()
        raas._pid = os.getpid()
        place = run / "state" / "raas-0" / "raas.json"
        place.write_text(text.replace("PID", str(os.getpid())))
        for _ in range(2):
            await raas._look()

    asyncio.run(look_twice())
    assert caplog.text.count("address of raas-0") == 1


def test_what_a_host_reports_of_a_raas_is_taken_by_the_pool(run: Path) -> None:
    async def report(directory: Path) -> SeatReport:
        async def in_thread(call: Callable[[], Any]) -> Any:
            return call()

        environment = {"ASTRAFLOW_TOKEN": "a\0b"}
        order = SeatOrder(run="ada/r", raas="raas-0", start=1, places=1, directory=str(directory), launcher=LAUNCHER, environment=environment)  # fmt: skip
        raas = RaasProcess(order, OwnFolder(run.parent), 1, 1e5, in_thread, lambda: None)
        await raas.ended()
        raas._note({"ready": True, "episodes_running": 1, "metrics": {"tokens_generated": 1e15}})
        return decode(encode(raas.report()), SeatReport)

    started = asyncio.run(report(run))
    assert started.exit_code == 2 and started.last_lines and started.tokens < 1e7
    long = Path("/none" + "/b" * 480)
    assert len(asyncio.run(report(long)).last_lines[0]) <= 1000


@pytest.mark.parametrize("kind", ["fifo", "missing", "deep"])
def test_files_of_tls_that_are_none(run: Path, kind: str) -> None:
    files = {key: str(run / key) for key in ("authority", "certificate", "private_key")}
    if kind == "fifo":
        for path in files.values():
            os.mkfifo(path)
    table = "".join(f"{key} = {json.dumps(path)}\n" for key, path in files.items())
    (run / "config.toml").write_text("x = " + "[" * 9000 if kind == "deep" else "[tls]\n" + table)
    with pytest.raises((ValueError, OSError)):
        OwnedRunFolder(str(run)).tls()
