"""A real bash completes what the script says."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from astraflow_contrib_completion.command import command_line
from astraflow_core.component import Command
from astraflow_runtime.cli import main
from astraflow_runtime.cli.provided import ProvidedCommand

ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_astraflow
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", "bash"]) == 0
    file = tmp_path / "astraflow.bash"
    file.write_text(capsys.readouterr().out)
    return file


def completions(script: Path, folder: Path, *words: str) -> set[str]:
    """What bash offers for the last of ``words``."""
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "--norc", "-c", ASK, "bash", script, "astraflow", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_commands_parts_options_files_and_runs(script: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "digits-1").mkdir(parents=True)
    (tmp_path / "mine.toml").touch()
    assert completions(script, tmp_path, "sta") == {"status"}
    assert completions(script, tmp_path, "raas", "") >= {"add", "drain"}
    assert completions(script, tmp_path, "plugins", "w") == {"why"}
    assert completions(script, tmp_path, "status", "--r") == {"--run"}
    assert "digits-1" in completions(script, tmp_path, "status", "--run", "")
    assert "mine.toml" in completions(script, tmp_path, "run", "m")


def test_every_shell_gets_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("zsh", "tcsh", "fish", "powershell"):
        assert main(["completion", shell]) == 0
        assert "data-policy" in capsys.readouterr().out
    assert main(["completion", "cmd"]) == 2
    assert "invalid choice: 'cmd'" in capsys.readouterr().err


def test_a_command_that_cannot_be_imported_is_left_out_and_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = ProvidedCommand(Command("broken", "no", "x", "no_such_module:f"), "p", "dist", "1")
    parser = command_line({"broken": broken})
    assert isinstance(parser, argparse.ArgumentParser)
    assert "left out: command 'broken' of plugin 'p'" in capsys.readouterr().err
