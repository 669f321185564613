"""The Python API, as a notebook would use it."""

from __future__ import annotations

import textwrap

import pytest

from astraflow_testing.runs import TABLE_RUN, User

pytestmark = pytest.mark.timeout(300)


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
def test_a_run_of_ones_own_objects_goes_on(user: User) -> None:
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
