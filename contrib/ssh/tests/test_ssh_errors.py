"""What a person reads whose hosts cannot be reached; the ssh client is a shell script."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow_contrib_ssh.config import SshConfig
from astraflow_contrib_ssh.launcher import SshLauncher
from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import ComponentContext, RunInfo


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("echo Welcome to gpu-1", "the shell of gpu-1 printed 'Welcome to gpu-1' before the agent answered; make `ssh gpu-1"),
        ("echo 42", "the shell of gpu-1 printed '42' before"),
        ("printf '\\033[31mred\\n'", r"printed '\?\[31mred' before"),
        ("echo Connection refused >&2; exit 255", "host 'gpu-1': Connection refused; check `.* gpu-1 true`"),
        ("echo not found >&2; exit 127", "not found; host 'gpu-1' cannot run 'python3': set .launcher. agent_python"),
    ],
)  # fmt: skip
def test_a_host_without_an_agent_is_named_with_the_next_step(
    script: str, says: str, tmp_path: Path
) -> None:
    client = tmp_path / "client"
    client.write_text(f"#!/bin/sh\n{script}\n")
    client.chmod(0o700)
    run = RunInfo("test", 0, 1, 1, ("solver",), tmp_path)
    context = ComponentContext(run, "launcher", "", 0, tmp_path / "state")
    config = SshConfig(hosts=("gpu-1",), command=(str(client),), connect_s=20.0)
    launcher = SshLauncher(config, context)
    spec = ProcessSpec("raas-0", "raas", ("true",), {}, tmp_path / "raas-0.log")
    try:
        with pytest.raises(PreflightError, match=says):
            launcher.prepare([spec])
    finally:
        launcher.close()
