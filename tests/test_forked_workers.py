"""Tests in forked workers: each runs once, and what ends a worker or interrupts pytest is told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"
CONFTEST = """
import pytest
from forked_workers import ForkedWorkers

def pytest_configure(config):
    config.pluginmanager.register(ForkedWorkers(3))

@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("of_a_worker")
    yield made
    print("torn down", made, flush=True)
    (made / "done").touch()
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    (tmp_path / "conftest.py").write_text(CONFTEST)

    def begin(*arguments: str, **files: str) -> subprocess.Popen[str]:
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        command += ["--rootdir", str(tmp_path), "--basetemp", str(tmp_path / "temporary")]
        return subprocess.Popen(
            [*command, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(SCRIPTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return begin


def said(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=60)[0]


def test_every_test_runs_once_with_fixtures_of_its_worker(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    many = "import os, warnings, pytest\n"
    many += "@pytest.mark.parametrize('n', range(20))\ndef test_it(n, folder):\n"
    many += "    (folder.parent.parent / f'{__name__}-{n}').open('x').close()\n"
    many += "    if n == 19: warnings.warn(f'of {__name__}')\n"
    wrong = "def test_it(folder):\n    print('printed before')\n    assert 1 == 2\n"
    process = begin(a=many, b=many, c=many, d=many, wrong=wrong)
    text = said(process)
    assert process.returncode == 1
    assert "1 failed, 80 passed, 4 warnings" in text
    assert "assert 1 == 2" in text and "printed before" in text and "of test_b" in text
    temporary = tmp_path / "temporary"
    assert len(list(temporary.glob("test_?-*"))) == 80
    workers = sorted(temporary.glob("popen-gw*"))
    assert [worker.name for worker in workers] == ["popen-gw0", "popen-gw1", "popen-gw2"]
    used = [worker for worker in workers if (worker / "of_a_worker0").exists()]
    assert used and all((worker / "of_a_worker0" / "done").exists() for worker in used)


def test_a_worker_that_dies_fails_its_test_and_another_has_the_rest(
    begin: Callable[..., subprocess.Popen[str]],
) -> None:
    deadly = "import os, signal\ndef test_before(): pass\n"
    deadly += "def test_deadly(): os.kill(os.getpid(), signal.SIGKILL)\n"
    deadly += "def test_after(): pass\n"
    process = begin(deadly=deadly, other="def test_other(): pass\n")
    text = said(process)
    assert process.returncode == 1
    assert "1 failed, 3 passed" in text
    assert "ended with -9 in test_deadly.py::test_deadly" in text


def test_the_first_failure_ends_it_if_that_is_asked(
    begin: Callable[..., subprocess.Popen[str]],
) -> None:
    waits = "import threading\ndef test_it(folder): threading.Event().wait(50)\n"
    process = begin("-x", waits=waits, wrong="def test_it(): assert False\n")
    text = said(process)
    assert process.returncode == 1
    assert "stopping after 1 failures" in text and "1 failed in" in text


def test_ctrl_c_ends_the_workers_and_their_fixtures(
    begin: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    waits = "import os, threading\ndef test_it(folder):\n"
    waits += (
        f"    open({str(begun)!r}, 'w').write(str(os.getpid()))\n    threading.Event().wait(50)\n"
    )
    process = begin(waits=waits)
    worker = int(begun.read_text())
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in said(process)
    assert process.returncode == 2
    assert not Path(f"/proc/{worker}").exists()
    assert (tmp_path / "temporary" / "popen-gw0" / "of_a_worker0" / "done").exists()


def test_a_test_that_hangs_fails_with_the_stacks_of_its_worker(
    begin: Callable[..., subprocess.Popen[str]],
) -> None:
    hangs = "import threading\ndef test_it(): threading.Event().wait(50)\n"
    process = begin("-p", "pytest_timeout", "--timeout", "1", hangs=hangs)
    text = said(process)
    assert process.returncode == 1
    assert "1 failed" in text and "Timeout (>1.0s)" in text


def test_a_fixture_of_the_session_that_cannot_be_torn_down_is_an_error(
    begin: Callable[..., subprocess.Popen[str]],
) -> None:
    broken = "import pytest\n@pytest.fixture(scope='session')\ndef broken():\n    yield\n"
    broken += "    raise ValueError('left open')\ndef test_it(broken): pass\n"
    process = begin(broken=broken)
    text = said(process)
    assert process.returncode == 1
    assert "1 passed, 1 error" in text and "ValueError: left open" in text
