"""What tests cost is recorded and held to budgets; both are read, nothing is timed."""

from __future__ import annotations

from pathlib import Path

import dev
import durations
import pytest
import tiers
from workspace import ROOT

pytest_plugins = ["pytester"]

ALLOWED = {"core": 10.0, durations.OTHERS: 2.0, durations.SUM: 11.0}


def test_no_package_costs_more_than_its_budget() -> None:
    allowed = durations.budgets(durations.BUDGETS.read_text(encoding="utf-8"))

    assert {durations.OTHERS, durations.SUM, "core", "tests"} <= set(allowed)
    assert not durations.excesses(durations.read(), allowed)


def test_each_package_has_a_budget() -> None:
    """A row of its own or the one for others; rows and recorded files of removed packages are ignored."""
    packages = {package.path.relative_to(ROOT).as_posix() for package in dev.packages()} | {"tests"}
    allowed = durations.budgets(durations.BUDGETS.read_text(encoding="utf-8"))
    record = durations.read()
    assert allowed.keys() - {durations.OTHERS, durations.SUM} <= packages
    assert durations.sums(record).keys() <= packages
    files = {file for kind in ("files", *tiers.RECORDS.values()) for file in record.get(kind, {})}
    assert [file for file in files if not (ROOT / file).is_file()] == []
    largest = max(allowed.get(name, allowed[durations.OTHERS]) for name in packages)
    assert largest < allowed[durations.SUM]


def test_a_package_over_its_budget_is_named_with_both_numbers() -> None:
    record = {
        "files": {
            "core/tests/wire/test_a.py": 6.0,
            "core/tests/test_b.py": 5.0,
            "tests/test_c.py": 1.0,
        },
        "tests": {"core/tests/test_b.py::test_it": 4.5},
    }

    core, whole = durations.excesses(record, ALLOWED)

    assert core.startswith(
        "core: 11 CPU seconds of tests are recorded, its budget in CONTRIBUTING.md is 10"
    )
    assert whole.startswith("sum: 12 CPU seconds")
    lines = "\n".join(durations.report(record, ALLOWED))
    assert "4.5  core/tests/test_b.py::test_it" in lines
    assert "11.0 of   10  core" in lines
    assert "1.0 of    2  tests" in lines


def test_the_table_is_read() -> None:
    table = "| package | budget |\n|---|---|\n| `libs/x` | 10 s |\n| each other package | 2 s |\n| sum | 11 s |"

    assert durations.budgets(table) == {"libs/x": 10.0, durations.OTHERS: 2.0, durations.SUM: 11.0}


def test_the_record_changes_only_where_the_tests_did() -> None:
    here, gone = "tests/test_durations.py", "tests/test_gone.py"
    other = "tests/test_layout.py"
    old = {
        "files": {here: 4.0, gone: 3.0, other: 2.0},
        "tests": {f"{here}::a": 3.0, f"{here}::b": 1.0},
    }

    same = durations.updated(old, {f"{here}::a": 2.5, f"{here}::b": 1.2})
    slower = durations.updated(old, {f"{here}::a": 6.9, f"{here}::c": 0.2})

    assert same == {
        "files": {here: 4.0, other: 2.0},
        "tests": {f"{here}::a": 3.0, f"{here}::b": 1.0},
    }
    assert slower == {"files": {here: 7.0, other: 2.0}, "tests": {f"{here}::a": 7.0}}

    whole = durations.updated(old, {f"{here}::a": 6.9}, complete=True)
    assert whole == {"files": {here: 7.0}, "tests": {f"{here}::a": 7.0}}

    heavy = durations.updated(same, {f"{here}::c": 3.0, f"{here}::d": 6.2}, "slow")
    assert heavy == {**same, "slow": {here: 9.0}}


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_the_cost_of_a_test_and_its_processes_is_measured(
    workers: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = Path(durations.__file__).parent
    pytester.makeini(f"[pytest]\npythonpath = {scripts}")
    record = pytester.path / "durations.json"
    pytester.makeconftest(f"""
        import durations, pathlib, recorder
        durations.RECORD, durations.ROOT = pathlib.Path({str(record)!r}), pathlib.Path({str(pytester.path)!r})
        durations.LEAST, durations.STEP = {{"files": 0.1, "tests": 0.3}}, 0.1
        def pytest_configure(config): config.pluginmanager.register(recorder.Recorder())
    """)
    pytester.makepyfile(
        test_costly="""
        import subprocess, sys
        BURN = "import time\\nwhile time.process_time() < 0.4: pass"
        def test_itself(): subprocess.run([sys.executable, "-S", "-c", BURN], check=True)
        def test_another(): pass
        """
    )
    record.write_text('{"files": {}, "tests": {}}')

    done = pytester.runpytest_subprocess("-n", workers, "-p", "no:cacheprovider")

    done.assert_outcomes(passed=2)
    monkeypatch.setattr(durations, "RECORD", record)
    measured = durations.read()
    assert measured["tests"].keys() == {"test_costly.py::test_itself"}
    assert (
        0.4
        <= measured["tests"]["test_costly.py::test_itself"]
        <= measured["files"]["test_costly.py"]
        < 5
    )
