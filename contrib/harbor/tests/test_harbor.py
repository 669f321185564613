"""Task folders: what is read of them, what is refused, and episodes in the sandbox."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_harbor.config import HarborConfig, HarborTasksConfig, ShellLimits
from astraflow_contrib_harbor.environment import HarborEnvironment
from astraflow_contrib_harbor.oracle import main, problem_of
from astraflow_contrib_harbor.source import HarborTasks
from astraflow_contrib_harbor.task_folder import read_task
from astraflow_core.errors import EnvironmentFailed, PromptError
from astraflow_core.types import Action, FunctionCall, Observation, Outcome, Prompt
from astraflow_environments.tasks import is_held_out
from astraflow_testing.conformance.subject import context

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "harbor" / "tasks"
IMAGES = ["ubuntu"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of an example."""
    return Path(shutil.copytree(EXAMPLES / "count-errors", tmp_path / "tasks" / "one"))


def prompts(folder: Path, **keys: Any) -> list[Prompt]:
    source = HarborTasks(HarborTasksConfig(path=folder.parent, **keys), context("dataflow", folder))
    return [source[number] for number in range(len(source))]


def bash(command: str) -> Action:
    return Action("", (FunctionCall("1", "bash", {"command": command}),))


FINISH = Action("", (FunctionCall("1", "finish", {}),))


def played(folder: Path, *actions: Action, **keys: Any) -> list[Observation]:
    keys.setdefault("sandbox", {"deadline_s": 60})

    async def play(environment: HarborEnvironment) -> list[Observation]:
        seen = [await environment.reset(prompts(folder)[0], 1)]
        return seen + [await environment.step(action) for action in actions]

    return list(with_environment(folder, play, **keys))


def with_environment(
    folder: Path, use: Callable[[HarborEnvironment], Awaitable[Any]], **keys: Any
) -> Any:
    async def used() -> Any:
        environment = HarborEnvironment(HarborConfig(**keys), context("raas", folder))
        try:
            return await use(environment)
        finally:
            await environment.close()

    return asyncio.run(used())


def text(observation: Observation) -> str:
    return str(observation.messages[0]["content"])


# --- folders -----------------------------------------------------------------------------------


def test_a_folder_is_read(folder: Path) -> None:
    dockerfile = folder / "environment" / "Dockerfile"
    dockerfile.write_text(
        "# syntax=docker/dockerfile:1\nFROM docker.io/ubuntu:24.04\nENV A=1 \\\n    B='2 3'\nENV C 4\n"
        'WORKDIR /app\nWORKDIR logs\nCOPY service.log notes/\nCOPY ["service.log", "/data/one.log"]\nCMD ["bash"]\n'
    )
    task = read_task(folder, IMAGES, skip_runs=False)
    assert task.instruction.startswith("How many lines") and task.workdir == "/app/logs"
    assert task.variables == {"A": "1", "B": "2 3", "C": "4"}
    assert set(task.files) == {"/app/logs/notes/service.log", "/data/one.log"}
    assert task.tests["/tests/test.sh"][0] == 0o755 and "/solution/solve.sh" in task.solution
    before = task.digest
    (folder / "solution" / "solve.sh").write_text("true")
    assert read_task(folder, IMAGES, skip_runs=False).digest == before
    (folder / "tests" / "test.sh").write_text("true")
    assert read_task(folder, IMAGES, skip_runs=False).digest != before


DOCKERFILE = "environment/Dockerfile"
BAD = {
    "has no instruction.md": ("instruction.md", None),
    "instruction.md is empty": ("instruction.md", " \n"),
    "has no tests/test.sh": ("tests/test.sh", None),
    "has no environment/Dockerfile": (DOCKERFILE, None),
    "task.toml: Invalid value": ("task.toml", "environment = ["),
    "'environment' is 3; expected a table": ("task.toml", "environment = 3"),
    "needs the image 'org/made:1', and no container": ("task.toml", '[environment]\ndocker_image = "org/made:1"'),
    "needs GPUs": ("task.toml", "[environment]\ngpus = 1"),
    "another system": ("task.toml", '[environment]\nos = "Windows"'),
    "several steps": ("task.toml", '[[steps]]\nname = "one"'),
    "a separate container": ("task.toml", '[verifier]\nenvironment_mode = "separate"'),
    r"KEY of \[verifier.env\] is '\$\{KEY\}'": ("task.toml", '[verifier.env]\nKEY = "${KEY}"'),
    "uses /srv; a sandbox has": ("task.toml", '[environment]\nworkdir = "/srv"'),
    "needs the image 'alpine'": (DOCKERFILE, "FROM alpine"),
    r"has RUN \(apt-get install -y git\).*run_lines = 'skip'": (DOCKERFILE, "FROM ubuntu\nRUN apt-get install -y git"),
    "has USER": (DOCKERFILE, "FROM ubuntu\nUSER me"),
    "copies '../tests', which is not in": (DOCKERFILE, "FROM ubuntu\nCOPY ../tests /app/"),
    "only files next to it": (DOCKERFILE, "FROM ubuntu\nADD https://x.org/a /app/"),
    "--from=x": (DOCKERFILE, "FROM ubuntu\nCOPY --from=x a /app/"),
    "needs several containers": ("environment/docker-compose.yaml", "services: {}"),
}  # fmt: skip


@pytest.mark.parametrize("says", BAD)
def test_a_folder_that_cannot_be_played_is_refused_with_its_reason(folder: Path, says: str) -> None:
    name, content = BAD[says]
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(PromptError, match=rf"(?s)one: .*{says}"):
        prompts(folder)
    shutil.copytree(EXAMPLES / "largest-order", folder.parent / "two")
    assert [prompt.id for prompt in prompts(folder, unplayable="skip")] == ["two"]


def test_lines_that_install_can_be_skipped(folder: Path) -> None:
    (folder / DOCKERFILE).write_text(
        "FROM ubuntu\nRUN apt-get update && \\\n  apt-get install git\nWORKDIR /app"
    )
    (prompt,) = prompts(folder, run_lines="skip")
    assert prompt.data["skip_runs"]


def test_links_and_great_folders_are_refused(folder: Path) -> None:
    link = folder / "environment" / "link"
    link.symlink_to("/etc/passwd")
    with pytest.raises(PromptError, match="environment/link is a link"):
        prompts(folder)
    link.unlink()
    (folder / "environment" / "great").write_bytes(bytes((16 << 20) + 1))
    with pytest.raises(PromptError, match="great has more than 16 MiB"):
        prompts(folder)


def test_the_instruction_alone_decides_the_part(folder: Path) -> None:
    for number in range(30):
        shutil.copytree(folder, folder.parent / f"n{number}")
        (folder.parent / f"n{number}" / "instruction.md").write_text(f"Task {number}")
    parts = {part: {p.id for p in prompts(folder, split=part)} for part in ("train", "held_out")}
    assert not parts["train"] & parts["held_out"]
    assert len(parts["train"] | parts["held_out"]) == 31
    assert ("n3" in parts["held_out"]) == is_held_out("Task 3")
    assert len(prompts(folder, limit=2)) == 2


# --- episodes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_a_solution_earns_one_and_doing_nothing_less(name: str) -> None:
    keys = HarborTasksConfig(path=EXAMPLES)
    assert asyncio.run(problem_of(EXAMPLES / name, ShellLimits(deadline_s=60), keys)) == ""


def test_the_check_of_tasks_says_what_fails(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tests" / "test.sh").write_text("exit 1\n")
    (folder.parent / "two" / "tests").mkdir(parents=True)
    (folder.parent / "two" / "tests" / "test.sh").touch()
    assert main([str(folder.parent)]) == 1
    assert capsys.readouterr().out == "one: its solution earns 0\ntwo: has no instruction.md\n"
    for where, says in (
        (tmp_path / "nowhere", "is not a folder"),
        (tmp_path, "has no task; expected folders"),
        (folder, "it is a task itself"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([str(where)])
        assert says in capsys.readouterr().err


def test_tests_that_reach_a_limit_are_distinguished_from_those_that_fail(folder: Path) -> None:
    (folder / "tests" / "test.sh").write_text("while :; do :; done\n")
    problem = problem_of(folder, ShellLimits(cpu_s=1), HarborTasksConfig(path=folder.parent))
    assert asyncio.run(problem) == "its solution earns 0: the tests reached a limit of [sandbox]"


def test_files_stay_and_tests_are_not_there_before_the_end(folder: Path) -> None:
    first, listed, wrote, over = played(
        folder,
        bash("pwd; ls; ls /tests /solution; cat service.log | wc -l"),
        bash("export A=1; sleep 600 & grep -c ' ERROR ' service.log > answer.txt; exit 3"),
        FINISH,
    )
    assert "How many lines" in text(first) and "/app" in text(first) and len(first.tools) == 2
    assert text(listed).splitlines()[:2] == ["/app", "service.log"]
    assert "test.sh" not in text(listed) and "solve.sh" not in text(listed)
    assert text(wrote) == "[exit code 3]"
    assert over.reward == 1.0 and over.outcome is Outcome.FINISHED
    assert over.metrics == {"commands": 2.0, "failed_commands": 1.0}


def test_an_episode_ends_by_its_turns_and_is_judged_all_the_same(folder: Path) -> None:
    keys: dict[str, Any] = {"actions": "text", "turns": 2}
    _, wrong, over = played(folder, Action("Hm."), Action("<bash>echo 7 > answer.txt"), **keys)
    assert "Reply with <bash>" in text(wrong) and wrong.outcome is None
    assert over.outcome is Outcome.TRUNCATED and over.reward == 1.0
    _, over = played(folder, Action("<finish></finish>"), **keys)
    assert over.outcome is Outcome.FINISHED and over.reward == 0.0
    _, over = played(folder, Action(" 7 "), turns=1, completes="echo {} > answer.txt")
    assert over.outcome is Outcome.FINISHED and over.reward == 1.0


def test_a_command_is_bounded_and_its_files_stay(folder: Path) -> None:
    _, spun, great, over = played(
        folder,
        bash("echo 7 > answer.txt; while :; do :; done"),
        bash("head -c 400000 /dev/zero | tr '\\0' x"),
        FINISH,
        sandbox={"deadline_s": 60, "cpu_s": 1},
        max_output=100,
    )
    assert text(spun) == "[stopped: no more processor time]"
    assert "characters are left out]" in text(great) and "no more room for output" in text(great)
    assert over.reward == 1.0


TRICKS = {
    "writes the reward": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "prepares tests": "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 500 /tests",
    "leads tests elsewhere": "rm -rf /tmp/tests; ln -s /tmp/app /tmp/tests; rm -rf /tmp/logs; ln -s /tmp/app /tmp/logs",
    "waits for the tests": "(while :; do echo 1 > /logs/verifier/reward.txt; done) & disown",
    "fills the disk": "head -c 15000000 /dev/zero > a; cp a b; cp a c; cp a d; cp a e; echo 7 > answer.txt",
}


@pytest.mark.slow
@pytest.mark.parametrize("trick", TRICKS)
def test_what_a_command_leaves_does_not_judge(folder: Path, trick: str) -> None:
    *_, over = played(folder, bash(TRICKS[trick]), FINISH)
    assert over.reward == 0.0, over


REWARDS = {
    "echo 0.25 > /logs/verifier/reward.txt": (0.25, {}),
    'echo \'{"reward": 0.5, "parts": 3}\' > /logs/verifier/reward.json': (0.5, {"parts": 3.0}),
    "echo '{\"right\": 1}' > /logs/verifier/reward.json; exit 1": (1.0, {}),
    "true": (1.0, {}),
    "exit 4": (0.0, {}),
}


@pytest.mark.parametrize("script", REWARDS)
def test_the_reward_is_what_the_tests_write_or_their_exit_code(folder: Path, script: str) -> None:
    (folder / "tests" / "test.sh").write_text(f"#!/bin/bash\n{script}\n")
    *_, over = played(folder, FINISH)
    reward, metrics = REWARDS[script]
    assert over.reward == reward and metrics.items() <= over.metrics.items()


@pytest.mark.parametrize("written", ["one", "NaN", '{"a": 1, "b": 2}', '{"reward": "1"}'])
def test_a_reward_that_is_none_fails_the_episode(folder: Path, written: str) -> None:
    (folder / "tests" / "test.sh").write_text(f"echo '{written}' > /logs/verifier/reward.txt")
    with pytest.raises(EnvironmentFailed, match="the task's tests wrote") as failed:
        played(folder, FINISH)
    assert failed.value.kind == "tests"


@pytest.mark.slow
def test_an_episode_that_was_left_in_a_command_leaves_nothing_to_the_next(folder: Path) -> None:
    async def play(environment: HarborEnvironment) -> Observation:
        (prompt,) = prompts(folder)
        await environment.reset(prompt, 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await environment.step(bash("echo 7 > answer.txt; sleep 600"))
        await environment.reset(prompt, 1)
        return await environment.step(bash("ls"))

    listed = with_environment(folder, play, sandbox={"deadline_s": 60})
    assert text(listed) == "service.log"


def test_a_folder_that_has_changed_is_named(folder: Path) -> None:
    (prompt,) = prompts(folder)
    (folder / "tests" / "test.sh").write_text("true")

    async def play(environment: HarborEnvironment) -> None:
        with pytest.raises(PromptError, match=r"'one'.* has changed since"):
            await environment.reset(prompt, 1)

    with_environment(folder, play)


def test_keys_that_do_not_fit_are_refused() -> None:
    for keys, says in (
        ({"completes": "echo {}"}, "episodes of one turn"),
        ({"completes": "echo", "turns": 1}, "write {} once"),
    ):
        with pytest.raises(ValueError, match=says):
            HarborConfig(**keys)  # type: ignore[arg-type]
