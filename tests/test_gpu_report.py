"""``make gpu``: what its report says, where there is no device, too."""

from __future__ import annotations

import json
import time
from pathlib import Path

import gpu
import pytest

FILE = """
import time, pytest
def test_holds(): pass
def test_breaks(): assert 1 == 2
@pytest.mark.skip(reason="needs two GPUs")
def test_left_out(): pass
def test_hangs(): time.sleep(SECONDS)
"""


def run(folder: Path, seconds: float, limit_s: float) -> tuple[bool, dict[str, gpu.Outcome]]:
    file = folder / "test_some.py"
    file.write_text(FILE.replace("SECONDS", str(seconds)))
    xml = folder / "tests.xml"
    arguments = ("-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", f"--rootdir={folder}")
    in_time = gpu.called(
        time.monotonic() + limit_s, *arguments, f"--junitxml={xml}", "-c", "/dev/null", str(file)
    )
    return in_time, {o.test.rpartition("::")[2]: o for o in gpu.read_outcomes(xml)}


@pytest.mark.slow
def test_each_outcome_is_reported_with_its_reason(tmp_path: Path) -> None:
    in_time, outcomes = run(tmp_path, 0, 60)
    assert in_time and {name: o.outcome for name, o in outcomes.items()} == {
        "test_holds": gpu.PASSED,
        "test_breaks": gpu.FAILED,
        "test_left_out": gpu.SKIPPED,
        "test_hangs": gpu.PASSED,
    }
    figures = {"card": "A Card", "train_tokens_s": 12.5, "failed": {"weights": "OSError: no"}}
    told = gpu.report(list(outcomes.values()), figures, in_time)
    assert (
        told.startswith("# A Card\n") and "2 tests passed\n1 tests failed\n1 tests skipped" in told
    )
    assert "test_breaks`: assert 1 == 2" in told and "test_left_out`: needs two GPUs" in told
    assert "| train_tokens_s | 12.5 |" in told and "weights was not measured: OSError: no" in told


@pytest.mark.slow
def test_tests_that_do_not_end_are_stopped_and_the_others_reported(tmp_path: Path) -> None:
    began = time.monotonic()
    in_time, outcomes = run(tmp_path, 200, 20)
    assert not in_time and time.monotonic() - began < 100
    assert outcomes["test_breaks"].outcome == gpu.FAILED
    assert "did not end in time" in gpu.report(list(outcomes.values()), {}, in_time)


def test_only_files_with_tests_for_a_gpu_are_read() -> None:
    files = {Path(file).relative_to(gpu.ROOT).as_posix() for file in gpu.marked()}
    assert {"tests/test_gpu_runs.py", "plugins/trainers/fsdp/tests/test_gpu.py"} <= files
    assert "tests/test_run.py" not in files


@pytest.mark.parametrize("failed", [{}, {"weights": "no"}])
def test_the_exit_code_shows_whether_all_checks_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: dict[str, str]
) -> None:
    def called(ends: float, *arguments: str) -> bool:
        place = Path(next(a for a in arguments if "=" in a).partition("=")[2])
        if place.suffix == ".json":
            place.write_text(json.dumps({"card": "NVIDIA H100 80GB", "failed": failed}))
        else:
            place.write_text('<s><testcase classname="a" name="test_b"/></s>')
        return True

    monkeypatch.setattr(gpu, "has_cuda", lambda: True)
    monkeypatch.setattr(gpu, "called", called)
    monkeypatch.setattr(gpu, "RESULTS", tmp_path)
    assert gpu.main([]) == (1 if failed else 0)
    assert (tmp_path / "nvidia-h100-80gb.md").read_text().startswith("# NVIDIA H100 80GB\n")


def test_without_a_device_it_says_what_to_look_at(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "has_cuda", lambda: False)
    assert gpu.main([]) == 2
    assert "`nvidia-smi` shows whether there is a driver" in capsys.readouterr().err
