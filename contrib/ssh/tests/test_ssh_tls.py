"""A host gets the files of ``[tls]`` that it lacks: the authority, and its own certificate and key; the ssh client is a shell script."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from astraflow_contrib_ssh.config import SshConfig
from astraflow_contrib_ssh.launcher import SshLauncher
from astraflow_core.errors import PreflightError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_core.types import ComponentContext, RunInfo
from astraflow_testing.conformance._launchers.puppets import until

SCRIPT = """
import os, sys
for name in sorted(os.listdir(sys.argv[1])):
    path = os.path.join(sys.argv[1], name)
    print(name, oct(os.stat(path).st_mode & 0o777), open(path).read())
"""
MOUNT = ["unshare", "--mount", "true"]


def may_mount() -> bool:
    try:
        return subprocess.run(MOUNT, capture_output=True, timeout=30).returncode == 0
    except OSError:
        return False


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[SshLauncher]:
    """Of host ``one``, which sees an empty folder where this machine has its certificates."""
    certs = tmp_path / "certs"
    certs.mkdir()
    for name in ("authority.pem", "authority.key", "one.pem", "one.key", "two.pem", "two.key"):
        (certs / name).write_text(f"of {name}")
    keys = {"authority": "authority.pem", "certificate": "{host}.pem", "private_key": "{host}.key"}
    lines = (f'{key} = "{certs}/{name}"' for key, name in keys.items())
    (tmp_path / "config.toml").write_text("[tls]\n" + "\n".join(lines))
    client = tmp_path / "client"
    client.write_text(
        "#!/bin/sh\nfor last; do :; done\nunset SSH_CONNECTION\n"
        f'exec unshare --mount sh -c \'mount -t tmpfs none {certs} && eval "$1"\' sh "$last"\n'
    )
    client.chmod(0o700)
    run = RunInfo("test", 0, 1, 1, ("solver",), tmp_path)
    context = ComponentContext(run, "launcher", "", 0, tmp_path / "state")
    config = SshConfig(
        hosts=("one",), command=(str(client),), agent_python=sys.executable, connect_s=20.0
    )
    made = SshLauncher(config, context)
    yield made
    made.close()


@pytest.mark.skipif(not may_mount(), reason="needs root: a host with a folder of its own")
def test_it_gets_its_own_and_no_others_for_its_user_alone(
    launcher: SshLauncher, tmp_path: Path
) -> None:
    command = (sys.executable, "-c", SCRIPT, str(tmp_path / "certs"))
    spec = ProcessSpec("raas-0", "raas", command, {}, tmp_path / "raas-0.log")
    launcher.prepare([spec])
    launcher.start(spec)
    until(lambda: launcher.poll()[0].exit_code == 0, "the process to end")
    assert launcher.logs("raas-0", 9) == [
        f"{name} 0o600 of {name}" for name in ("authority.pem", "one.key", "one.pem")
    ]
    assert sorted(os.listdir(tmp_path / "certs")) == sorted(
        f"{name}.{kind}" for name in ("authority", "one", "two") for kind in ("key", "pem")
    )


@pytest.mark.skipif(not may_mount(), reason="needs root: a host with a folder of its own")
def test_a_host_without_a_certificate_is_refused_with_the_command_that_makes_one(
    launcher: SshLauncher, tmp_path: Path
) -> None:
    (tmp_path / "certs" / "one.pem").unlink()
    spec = ProcessSpec("raas-0", "raas", ("true",), {}, tmp_path / "raas-0.log")
    with pytest.raises(PreflightError) as caught:
        launcher.prepare([spec])
    assert f"host 'one' has no {tmp_path}/certs/one.pem, its certificate of [tls]" in str(
        caught.value
    )
    assert f"`astraflow certs {tmp_path}/certs --host one`" in str(caught.value)
