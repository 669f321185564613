"""The Python API, as a notebook would use it."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest

from astraflow_testing.runs import TABLE_RUN, User

# Their scripts start runs as a notebook does: with one server of imports each.
pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("new_interpreters")]


def run_script(user: User, script: str) -> tuple[int, str]:
    import subprocess
    import sys

    path = user.write("notebook.py", textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=user.directory,
        env=user.environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_reward_and_a_workflow_of_ones_own(user: User) -> None:
    user.write("table.toml", TABLE_RUN)
    code, output = run_script(
        user,
        """
        import astraflow_runtime
        from astraflow_core.types import Trajectory

        class Ask:
            async def run_episode(self, engines, prompt):
                solver = engines["solver"]
                asked = solver.render(prompt.data["prompt"])
                result = await solver.generate(asked)
                return Trajectory((solver.sequence(asked, result),), (solver.completion(result),))

        def likes_sevens(view):
            return view.text.count("7") / 3

        result = astraflow_runtime.run(
            "table.toml", workflow=Ask(), reward=likes_sevens, overrides=["run.steps=12"]
        )
        assert result.exit_code == 0
        assert result.summary["steps"] == 12
        assert result.summary["reward_last"] > result.summary["reward_first"] + 0.3, result.summary
        print("learned")
        """,
    )
    assert code == 0, output
    assert "learned" in output
    assert user.left_running() == []


@pytest.mark.slow
def test_a_mistake_raises_a_readable_error(user: User) -> None:
    user.write("table.toml", TABLE_RUN)
    code, output = run_script(
        user,
        """
        import astraflow_runtime
        from astraflow_core.errors import ConfigError

        try:
            astraflow_runtime.run("table.toml", overrides=["run.stepz=1"])
        except ConfigError as error:
            print("refused:", error)
        """,
    )
    assert code == 0, output
    assert "refused:" in output and "run.stepz" in output


@pytest.mark.slow
def test_a_run_of_ones_own_objects_continues(user: User) -> None:
    user.write("table.toml", TABLE_RUN)
    code, output = run_script(
        user,
        """
        import os, signal, threading, time
        from pathlib import Path
        import astraflow_runtime

        def likes_sevens(view):
            return view.text.count("7") / 3

        def interrupt():
            while True:
                logs = list(Path("runs").glob("*/metrics.jsonl"))
                if logs and logs[0].read_text().count('"step"') >= 5:
                    os.kill(os.getpid(), signal.SIGINT)
                    return
                time.sleep(0.05)

        threading.Thread(target=interrupt, daemon=True).start()
        slowly = ["run.steps=40", "policies.solver.trainer.step_s=0.1"]
        stopped = astraflow_runtime.run("table.toml", reward=likes_sevens, overrides=slowly)
        assert stopped.exit_code == 130, stopped.exit_code
        made = stopped.summary["steps"]
        assert 5 <= made < 40
        resumed = astraflow_runtime.resume(stopped.directory)
        assert resumed.exit_code == 0
        assert resumed.summary["steps"] == 40
        steps = [line["step"] for line in resumed.metrics if "step" in line]
        assert steps == list(range(1, 41)), steps
        assert resumed.summary["reward_last"] > resumed.summary["reward_first"] + 0.3
        print("continued")
        """,
    )
    assert code == 0, output
    assert "continued" in output
    assert user.left_running() == []


CELLS = (
    "import astraflow_runtime\nresult = astraflow_runtime.run('table.toml', overrides=['run.steps=4'])",
    "result",
    "result.plot()",
    "print(sorted(result.metrics_frame()['step']), len(result.rollouts_frame('reward>=0')) > 0)",
    "astraflow_runtime.load_run(result.directory)",
    "astraflow_runtime.load_run('nowhere')",
)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_cells_of_a_notebook_run_in_a_kernel(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    import nbclient
    from nbformat.v4 import new_code_cell, new_notebook

    user.write("table.toml", TABLE_RUN)
    monkeypatch.setattr("os.environ", user.environment | {"PATH": str(Path(sys.executable).parent)})
    book = new_notebook(cells=[new_code_cell(cell) for cell in CELLS])
    client = nbclient.NotebookClient(book, timeout=120, kernel_name="python3", allow_errors=True,
                                     resources={"metadata": {"path": str(user.directory)}})  # fmt: skip
    client.execute()
    shown = [cell.outputs for cell in book.cells]
    assert [output.get("evalue") for output in shown[0]] == [None] * len(shown[0])
    for own in (1, 4):
        (output,) = shown[own]
        assert "4 of 4 steps" in output.data["text/html"]
        assert "<script" not in output.data["text/html"]
    assert shown[2][0].data["image/png"].startswith("iVBOR")
    assert shown[3][0].text == "[1, 2, 3, 4] True\n"
    assert shown[5][0].ename == "UserError" and "there is no run in nowhere" in shown[5][0].evalue
    assert user.left_running() == []
