"""Exit codes, errors without tracebacks, and the commands that read a run's file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow_core.errors import RunFailed, UserError
from astraflow_runtime import cli
from astraflow_runtime.cli import main


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``astraflow plugins`` raise."""

    def command(_: object) -> int:
        raise error

    monkeypatch.setattr("astraflow_runtime.cli.installation.plugins.run", command)


@pytest.mark.parametrize(
    ("error", "code"), [(UserError("no such thing"), 2), (RunFailed("it failed"), 1)]
)
def test_errors_are_reported_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    raising(error, monkeypatch)
    assert main(["plugins"]) == code
    assert capsys.readouterr().err == f"astraflow: {error}\n"
    monkeypatch.setenv(cli.TRACEBACK, "1")
    with pytest.raises(type(error)):
        main(["plugins"])


def test_ctrl_c_and_bugs(monkeypatch: pytest.MonkeyPatch) -> None:
    raising(KeyboardInterrupt(), monkeypatch)
    assert main(["plugins"]) == 130
    raising(ZeroDivisionError(), monkeypatch)
    with pytest.raises(ZeroDivisionError):
        main(["plugins"])


@pytest.mark.parametrize(
    ("arguments", "code"), [([], 2), (["nonsense"], 2), (["--help"], 0), (["--version"], 0)]
)
def test_usage(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == code
    said = capsys.readouterr()
    assert "astraflow" in said.out + said.err


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    program = f"{sys.executable} -m astraflow_runtime config schema | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {program}"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.startswith("run.name ")


def test_a_terminal_that_cannot_show_a_letter_ends_no_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "astraflow_runtime", "plugins", "why", "nö→"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert rb"n\xf6\u2192" in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr


def test_config_show(site: Any, run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", str(run_file), "--set", "run.seed=4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    by_key = {line.partition(" = ")[0]: line for line in lines}
    assert by_key["run.seed"].split() == ["run.seed", "=", "4", "#", "--set"]
    assert by_key["run.group_size"].endswith("# default")
    assert by_key["run.steps"].endswith(f"# {run_file}")
    assert main(["config", "show", str(run_file), "--json"]) == 0
    entries = {entry["key"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert entries["policies.solver.trainer.lr"] == {
        "key": "policies.solver.trainer.lr",
        "value": 0.001,
        "origin": "default of trainer toy/toy_trainer",
    }


def test_config_problems_exit_with_2(
    site: Any, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", str(run_file), "--set", "run.stepz=4"]) == 2
    assert "did you mean 'steps'?" in capsys.readouterr().err
    assert main(["config", "show", str(run_file.with_name("rum.toml"))]) == 2
    assert "did you mean 'run.toml'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu", "x.toml"], "no command 'rnu'; did you mean 'run'?"),
        (["xyzzy"], "no command 'xyzzy'; `astraflow --help` lists them"),
        (["config", "show", "."], "is a folder; name the TOML file of a run"),
        (["config", "explain", "toy_loss"], "did you mean 'algorithm/toy_loss'?"),
        (
            ["trace", "prompt", "p", "--run", "."],
            "no run '.': it is neither a run directory nor the name",
        ),
        (
            ["weights", "ls", "--run", "run.toml"],
            "no run 'run.toml': it is neither a run directory nor",
        ),
        (
            ["weights", "ls", "runs/a"],
            "unrecognized arguments: runs/a; select a run with --run runs/a",
        ),
        (["config", "show", "run.toml", "more"], "unrecognized arguments: more\n"),
    ],
)
def test_what_is_mistyped_is_named_with_the_next_step(
    run_file: Path,
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(run_file.parent)
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert said in err and out == "" and "Errno" not in err


def test_config_schema_and_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema", "--json"]) == 0
    assert "policies" in json.loads(capsys.readouterr().out)["properties"]
    assert main(["config", "explain", "run.max_staleness"]) == 0
    assert "0 is synchronous" in capsys.readouterr().out
    assert main(["config", "explain", "run.max_staleness", "--json"]) == 0
    (key,) = json.loads(capsys.readouterr().out)
    assert key["default"] is None


def test_modules_beside_the_caller_can_be_named(
    site: Any, run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_file.parent / "my_own_reward.py").write_text("def score(config, context): ...\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    override = ["--set", "reward={use='my_own_reward:score'}"]
    monkeypatch.chdir(run_file.parent)
    assert main(["config", "show", str(run_file), *override]) == 0
    assert 'reward.use = "my_own_reward:score"' in capsys.readouterr().out
    del sys.modules["my_own_reward"]


@pytest.mark.parametrize(
    ("role", "extra", "words"),
    [
        ("raas", ["--name", "r"], "the dataflow's address is ''"),
        (
            "trainer",
            ["--policy", "solver", "--dataflow", "host:1"],
            "the dataflow's address is 'host:1'",
        ),
        ("dataflow", [], "set ASTRAFLOW_TOKEN"),
    ],
)
def test_roles_say_what_they_lack(
    site: Any,
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    role: str,
    extra: list[str],
    words: str,
) -> None:
    for variable in ("ASTRAFLOW_TOKEN", "ASTRAFLOW_DATAFLOW"):
        monkeypatch.delenv(variable, raising=False)
    model = run_file.parent / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    command = [role, str(run_file), "--directory", str(run_file.parent / "d"), *extra]
    assert main([*command, "--set", f"policies.solver.model={model}"]) == 2
    assert words in capsys.readouterr().err


def test_roles_resolve_models_and_know_their_policies(
    site: Any, run_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ASTRAFLOW_TOKEN", "t")
    command = [
        "trainer",
        str(run_file),
        "--directory",
        str(run_file.parent / "d"),
        "--policy",
        "slover",
    ]
    command += ["--dataflow", "http://127.0.0.1:1"]
    assert main(command) == 2
    assert "no plugin handles the scheme 'nowhere:'" in capsys.readouterr().err
    (run_file.parent / "model").mkdir()
    (run_file.parent / "model" / "config.json").write_text("{}")
    run_file.write_text(run_file.read_text().replace("nowhere:x", "model"))
    assert main(command) == 2
    assert "did you mean 'solver'?" in capsys.readouterr().err


def test_a_raas_needs_a_name(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["raas", str(run_file), "--directory", str(run_file.parent / "d")]) == 2
    assert "--name" in capsys.readouterr().err


def test_a_report_needs_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "--run", str(tmp_path)]) == 2
    assert "it is neither a run directory" in capsys.readouterr().err
