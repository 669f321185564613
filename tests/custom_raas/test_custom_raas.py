"""The rollout service of the example is one for a real run, and `astraflow raas check` tells right from wrong."""

from __future__ import annotations

import ast
import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_raas_check.check import CheckOptions, check_raas
from astraflow_contrib_raas_check.outcome import RequirementOutcome
from astraflow_runtime.config.loading import load_config
from astraflow_testing.runs import TABLE_RUN, User
from astraflow_tiny_model.folder import write_tiny_model

HERE = Path(__file__).resolve().parent
EXAMPLE = HERE.parent.parent / "examples" / "custom_raas" / "raas.py"
WRONG = HERE / "wrong_raas.py"

pytestmark = pytest.mark.timeout(240)


def table_model(folder: Path) -> Path:
    """A table as a model folder."""
    ended = subprocess.run([sys.executable, EXAMPLE.parent / "table_engine.py", folder / "model"])
    assert ended.returncode == 0
    return folder / "model"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return table_model(tmp_path)


def test_it_imports_the_wire_alone() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    modules = [node.module or "" for node in found]
    assert {m.partition(".")[0] for m in modules if m[:9] == "astraflow"} == {"astraflow_wire"}
    assert len(text.splitlines()) <= 170


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check(
    user: User, model: Path, health: str, command: list[str], code: int, patience: str = "30"
) -> dict[str, Any]:
    """Demand → outcome, by ``astraflow raas check``."""
    file = user.write("table.toml", TABLE_RUN)
    ended = user.astraflow(
        "raas", "check", health, file, "--set", f"policies.solver.model={model}",
        "--json", "--start", shlex.join(command), "--patience", patience, deadline_s=220,
    )  # fmt: skip
    assert ended.exit_code == code, ended.text
    outcomes = {outcome["demand"]: outcome for outcome in json.loads(ended.out)}
    assert all(o["fix"] for o in outcomes.values() if o["state"] == "failed")
    assert user.left_running() == []
    return outcomes


@pytest.mark.slow
def test_the_example_meets_every_demand(user: User, model: Path) -> None:
    port = free_port()
    command = [sys.executable, str(EXAMPLE), str(model), "--port", str(port)]
    outcomes = check(user, model, f"http://127.0.0.1:{port}", command, 0)
    assert len(outcomes) == 19
    assert {outcome["state"] for outcome in outcomes.values()} == {"passed"}


@pytest.mark.slow
def test_our_own_meets_every_demand(user: User, model: Path) -> None:
    directory = user.directory / "run"
    command = [
        sys.executable, "-m", "astraflow_runtime", "raas", str(user.directory / "table.toml"),
        "--set", f"policies.solver.model={model}", "--directory", str(directory), "--name", "raas-0",
    ]  # fmt: skip
    place = directory / "state" / "raas-0" / "raas.json"
    outcomes = check(user, model, str(place), command, 0)
    assert {outcome["state"] for outcome in outcomes.values()} == {"passed"}


@pytest.mark.slow
def test_a_url_where_no_one_answers_is_named(user: User, model: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    outcomes = check(user, model, url, ["sleep", "100"], 1, "1")
    (health,) = [o for told, o in outcomes.items() if told.startswith("It always answers GET")]
    assert health["state"] == "failed" and url in health["text"]


MISTAKES = {
    "Hasty": "It asks for tasks only once it serves",
    "NewestStamp": "It rejects weights without",
    "Credulous": "It rejects weights without",
    "Fragile": "It rejects weights without",
    "Silent": "It renews its leases",
    "Forgetful": "Its renewals name the tasks",
    "Proud": "It registers again",
    "Restless": "It keeps a pinned version",
    "Dropping": "It serves a new version without losing",
    "Boundless": "It fails a task whose prompt and max_tokens",
    "Impatient": "It pushes the same group again",
    "Hoarding": "It discards weights that the journal has lost",
    "Reckless": "It discards weights that the journal has lost",
    "Stubborn": "It leaves when a notice says stop",
    "Vanishing": "It asks for tasks only once it serves",
    "Deaf": "It always answers GET",
    "Changeless": "It registers again",
}
"""What each of ``wrong_raas.py`` does not meet."""


@pytest.fixture(scope="module")
def checking(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Future[list[RequirementOutcome]]]]:
    """The checks of all that are wrong, some at a time, since they mostly wait for what never comes."""
    folder = tmp_path_factory.mktemp("wrong")
    model = table_model(folder)
    (folder / "table.toml").write_text(TABLE_RUN)
    loaded = load_config(
        folder / "table.toml", [f"policies.solver.model={model}"], workflow_given=True
    )

    def checked(kind: str) -> list[RequirementOutcome]:
        port = free_port()
        command = (sys.executable, str(WRONG), kind, str(model), "--port", str(port))
        url = f"http://127.0.0.1:{port}"
        return check_raas(
            CheckOptions(loaded, "token", url, command=command, seconds=45), lambda one: None
        )

    with ThreadPoolExecutor(4) as pool:
        yield {kind: pool.submit(checked, kind) for kind in MISTAKES}
        pool.shutdown(cancel_futures=True)


@pytest.mark.turns(
    "tests/custom_raas/wrong_raas.py",
    "examples/custom_raas/*.py",
    "contrib/commands/raas_check/src/**/*.py",
    "libs/wire/src/**/*.py",
    unit="wrong raas",
)
@pytest.mark.slow
@pytest.mark.timeout(700)
@pytest.mark.parametrize("kind", MISTAKES)
def test_what_is_wrong_is_found(
    checking: dict[str, Future[list[RequirementOutcome]]], kind: str
) -> None:
    failed = [one for one in checking[kind].result(600) if one.state == "failed"]
    assert any(one.demand.startswith(MISTAKES[kind]) for one in failed), failed
    assert all(one.fix for one in failed)


@pytest.mark.slow
def test_the_reason_of_a_refused_push_is_shown_at_once(user: User, model: Path) -> None:
    """Although the service ends then, and whatever the deadline of the check is."""
    port = free_port()
    command = [sys.executable, str(WRONG), "Garbled", str(model), "--port", str(port)]
    outcomes = check(user, model, f"http://127.0.0.1:{port}", command, 1, "200")
    (pushed,) = [o for told, o in outcomes.items() if told.startswith("It rolls out a task")]
    assert pushed["state"] == "failed"
    assert pushed["text"].startswith("its push was refused: RaaS 'custom', sequence 0")
    assert "logprobs has nan at token" in pushed["text"]


@pytest.mark.slow
def test_the_command_on_the_page_runs(user: User) -> None:
    """As it is printed, in a copy of the repository's folder; only the port is another one."""
    page = (EXAMPLE.parents[2] / "docs" / "custom-raas.md").read_text(encoding="utf-8")
    (printed,) = re.findall(r"```bash\n(cd examples/custom_raas\n.*?)```", page, re.DOTALL)
    shutil.copytree(EXAMPLE.parent, user.directory / "examples" / "custom_raas")
    user.environment["PATH"] = f"{Path(sys.executable).parent}:{user.environment['PATH']}"
    assert printed.count("19190") == 2
    ended = subprocess.run(
        ["bash", "-euc", printed.replace("19190", str(free_port()))],
        cwd=user.directory, env=user.environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "It leaves when a notice says stop" in ended.stdout


@pytest.mark.slow
def test_the_example_rolls_out_for_a_real_run(user: User) -> None:
    """Dataflow and trainer are ours, the rollouts are not; the table is learnt to the last step."""
    file = user.write("table.toml", TABLE_RUN)
    directory = user.directory / "run"
    user.environment["ASTRAFLOW_TOKEN"] = "of this test"
    flow = user.start("dataflow", file, "--directory", directory)
    place = directory / "dataflow.json"
    user.wait_for(place.is_file)
    url = json.loads(place.read_text())["url"]
    user.environment["ASTRAFLOW_DATAFLOW"] = url
    trainer = user.start("trainer", file, "--directory", directory, "--policy", "solver")
    model = write_tiny_model(user.directory / "m", hidden=8, layers=1, heads=1, kv_heads=1)
    raas = subprocess.Popen(
        [sys.executable, str(EXAMPLE), str(model), "--name", "foreign"], env=user.environment
    )
    try:
        assert user.end(trainer, 120).exit_code == 0
        assert raas.wait(60) == 0
        assert user.end(flow, 60).exit_code == 0
    finally:
        raas.kill()
        raas.wait()
    status = json.loads((directory / "status.json").read_text())
    assert status["steps"] == status["steps_total"] == 8
    assert [raas["name"] for raas in status["raas"]] == ["foreign"]
    assert status["invariants_ok"]
    policy = status["policies"]["solver"]
    assert policy["max_staleness_seen"] <= 2 and policy["trained"] == 8 * 32
