"""Where CI judges, a few failures get a second try of their own, and are named."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import dev
import pytest
import tiers

UNSTEADY = """
from pathlib import Path

def test_unsteady() -> None:
    seen = Path(__file__).with_name("seen")
    before = seen.exists()
    seen.touch()
    assert before

def test_steady() -> None:
    pass
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is tested as this repository is, by CI."""
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setenv("CI", "true")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    return tmp_path


@pytest.mark.slow
def test_what_passes_alone_is_named_and_does_not_fail(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "test_file.py").write_text(UNSTEADY)

    assert dev._pytest("not slow", "-n", "1") == 0
    printed = capfd.readouterr().out
    assert "UNSTEADY, to be fixed: test_file.py::test_unsteady failed" in printed
    assert "1 passed" in printed.splitlines()[-2]  # that one alone


LONG_TO_DESCRIBE = """
import time

def pytest_runtest_makereport() -> None:
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
"""
LIMITED = """
import pytest

@pytest.mark.timeout(0.4)
def test_fails() -> None:
    assert False

def test_another() -> None:
    pass
"""


@pytest.mark.slow
def test_a_time_limit_does_not_pass_while_a_failure_is_described(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (project / "conftest.py").write_text(LONG_TO_DESCRIBE)
    (project / "test_file.py").write_text(LIMITED)
    scripts = str(Path(tiers.__file__).parent)
    assert (
        dev._pytest("not slow", "-p", "time_limits", "-n", "0", "-o", f"pythonpath={scripts}") == 1
    )
    printed = capfd.readouterr().out
    assert "1 failed, 1 passed" in printed and "Timeout" not in printed


@pytest.mark.slow
def test_what_fails_twice_fails(project: Path) -> None:
    (project / "test_file.py").write_text("def test_wrong() -> None:\n    assert False\n")

    assert dev._pytest("not slow", "-n", "0") == tiers.FAILED


def test_many_failures_and_a_developers_are_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / ".pytest_cache/v/cache"
    cache.mkdir(parents=True)

    def failed(number: int) -> list[str]:
        record = {f"test_a.py::test_{i}": True for i in range(number)}
        (cache / "lastfailed").write_text(json.dumps(record))
        return tiers.to_run_again(tmp_path)

    monkeypatch.setenv("CI", "true")
    assert len(failed(tiers.AT_MOST_AGAIN)) == tiers.AT_MOST_AGAIN
    assert failed(tiers.AT_MOST_AGAIN + 1) == []
    monkeypatch.delenv("CI")
    assert failed(1) == []


@pytest.mark.parametrize(
    ("line", "heavy"),
    [
        ("pytestmark = pytest.mark.slow", True),
        ("pytestmark = [pytest.mark.timeout(9), pytest.mark.backend]", True),
        ("pytestmark = [\n    pytest.mark.timeout(9),\n    pytest.mark.gpu,\n]", True),
        ("pytestmark = pytest.mark.timeout(9)\n\n\n@pytest.mark.slow", False),
        ("pytestmark = [pytest.mark.timeout(9)]\nslow = [pytest.mark.slow]", False),
        ("    pytestmark = pytest.mark.slow", False),
    ],
)
def test_a_file_of_heavy_tests_alone_is_not_imported_for_the_light_ones(
    tmp_path: Path, line: str, heavy: bool
) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(f"import pytest\n\n{line}\n")
    assert tiers.left_out(file, tiers.LIGHT) is heavy
    assert not tiers.left_out(file, tiers.SLOW)
    assert not tiers.left_out(file, "")
