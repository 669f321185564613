"""``astraflow plugin check``: its verdicts, the report, and what cannot be checked."""

from __future__ import annotations

import ast
import hashlib
import json
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_plugin.checking import packaging
from astraflow_contrib_plugin.checking.layering import check_layering
from astraflow_contrib_plugin.checking.programs import TookTooLong, run_module
from astraflow_contrib_plugin.checking.report import as_html
from astraflow_contrib_plugin.checking.suites import SuiteRuns
from astraflow_contrib_plugin.checking.target import CheckedTarget
from astraflow_runtime.cli import main
from astraflow_runtime.cli.installation.check_report import digest_of


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("from astraflow_core.types import Batch", ""),
        ("from astraflow_core import Component, hookimpl", ""),
        ("import astraflow_wire.columns", "which is private"),
        ("from astraflow_runtime import raas", "imports astraflow_runtime.raas, which is private"),
        ("import astraflow_runtime.dataflow", "imports astraflow_runtime.dataflow"),
        ("from astraflow_core.errors import _hidden", "the private name _hidden"),
        ("from astraflow_plugin_http.config import HttpConfig", "of another plugin"),
        ("from astraflow_plugin_mine.other import x", ""),
        ("from . import other", ""),
        ("import numpy, json", ""),
    ],
)
def test_private_imports_are_named_with_file_and_line(line: str, says: str, tmp_path: Path) -> None:
    package = tmp_path / "astraflow_plugin_mine"
    package.mkdir()
    (package / "part.py").write_text(f'"""A part."""\n\n{line}\n')
    found = check_layering([package], None)
    assert found.verdict == ("failed" if says else "passed"), found
    if says:
        (problem,) = found.problems
        assert problem.startswith("astraflow_plugin_mine/part.py:3: ")
        assert says in problem


def test_a_file_that_is_no_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def (:\n")
    assert "broken.py" in check_layering([tmp_path], None).problems[0]


class Written(metadata.Distribution):
    """A distribution of which only the metadata exists."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


HEAD = "Metadata-Version: 2.4\nName: mine\nVersion: 1.0\n"
WHOLE = f"""{HEAD}Summary: what it is
License-Expression: MIT
License-File: LICENSE
Requires-Dist: astraflow-core>=0.1,<0.2

{"It does this and that. " * 20}
"""


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (WHOLE, {}),
        (
            HEAD,
            {
                "requirements": "astraflow-core is not among",
                "licence": "pyproject.toml has no licence",
                "readme": "it has no README",
            },
        ),
        (WHOLE.replace("<0.2", "<9"), {}),
        (WHOLE.replace(",<0.2", ""), {"requirements": "add an upper bound"}),
        (WHOLE.replace(">=0.1,<0.2", "<0.0.1"), {"requirements": "is installed)"}),
        (WHOLE.replace("License-File: LICENSE\n", ""), {"licence": "text of the licence is not"}),
        (HEAD + "\nshort", {"requirements": "", "licence": "", "readme": "has 5 characters"}),
    ],
)
def test_metadata(text: str, wrong: dict[str, str]) -> None:
    target = CheckedTarget("mine", "1.0", Written(text), None, None)
    found = {
        result.name: result
        for result in (
            packaging.check_requirements(target),
            packaging.check_licence(target),
            packaging.check_readme(target),
        )
    }
    for name, result in found.items():
        assert result.verdict == ("failed" if name in wrong else "passed"), result
        assert wrong.get(name, "") in " ".join(result.problems)


def test_a_program_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    (tmp_path / "hanging.py").write_text(
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(60)'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "time.sleep(60)\n"
    )
    with pytest.raises(TookTooLong, match=r"longer than 1\.5 s"):
        run_module("hanging", [], tmp_path, None, 1.5)
    status = Path("/proc", (tmp_path / "child").read_text(), "stat")
    deadline = time.monotonic() + 20
    while status.exists() and status.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "its child is still there"
        time.sleep(0.02)


def test_what_a_program_says_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "talking.py").write_text("print('x' * 79 + '\\n', end='')\n" * 5000 + "exit(3)\n")
    ended = run_module("talking", [], tmp_path, None, 30)
    assert ended.code == 3
    assert sum(map(len, ended.lines)) <= 1 << 14


def test_suites_cover_what_they_ran_on() -> None:
    def test(suite: str, cls: str, subject: str) -> dict[str, str]:
        return {"suite": suite, "class": cls, "subject": subject, "outcome": "passed"}

    runs = SuiteRuns(
        [test("reward", "A", ""), test("reward", "A", "mine"), test("workflow", "B", "")]
    )
    assert runs.covers("reward", "mine", "plugin/mine")
    assert not runs.covers("reward", "other")
    assert runs.covers("workflow", "of_a_rig")  # a component that a test built by hand has no name
    assert not runs.covers("engine", "mine")


REPORT: dict[str, Any] = {
    "distribution": {"name": "<mine>", "version": "1.0"},
    "checks": [{"name": "mypy", "verdict": "not checked", "summary": "é", "problems": ["<b>"]}],
    "versions": {"python": "3.11"},
    "verdict": "incomplete",
}


def test_the_digest_is_of_canonical_json() -> None:
    text = json.dumps(REPORT, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    expected = "sha256:" + hashlib.sha256(text.encode("utf-8")).hexdigest()
    assert digest_of(REPORT) == digest_of(REPORT | {"digest": "any"}) == expected
    assert digest_of(REPORT | {"verdict": "passed"}) != expected


def test_the_page_escapes_what_a_plugin_says() -> None:
    page = as_html(REPORT | {"digest": digest_of(REPORT)})
    assert "&lt;mine&gt; 1.0: incomplete" in page
    assert "&lt;b&gt;" in page and "<b>" not in page
    assert digest_of(REPORT) in page


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "pyproject.toml does not exist; give the folder of a plugin"),
        (["../none"], "pyproject.toml does not exist"),
        (["astraflow-contrib-rewrds"], "did you mean 'astraflow-contrib-rewards'?"),
        (["--deadline", "0"], "--deadline 0: expected seconds above 0"),
        (["--html", "none/page.html"], "there is no folder none"),
    ],
)
def test_what_cannot_be_checked(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plugin", "check", *arguments]) == 2
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_folder_that_cannot_be_built_says_what_pip_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "flit_core.buildapi"\n[project]\nname = "mine"\n'
    )
    assert main(["plugin", "check", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert f"{tmp_path} cannot be built" in said
    assert "version must be specified under [project]" in said


def test_generated_tests_are_python() -> None:
    from astraflow_contrib_plugin.checking.suites import _left_out

    components = [{"kind": kind, "name": "x"} for kind in ("reward", "transport", "environment")]
    plugin = {"name": "p", "manifest": "p.manifest", "commands": ["c"], "components": components}
    left = dict(_left_out(SuiteRuns(), {"plugins": [plugin]}))
    assert list(left) == [
        "manifest p.manifest",
        "command c",
        "reward x",
        "transport x",
        "environment x",
    ]
    for what, text in left.items():
        ast.parse(text)
        assert bool(text) == (what != "environment x")
