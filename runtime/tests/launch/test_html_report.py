"""A report as one page that needs no other file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import tomli_w
from launch_support import Table, parsed, status_of

from astraflow_runtime.cli import main
from astraflow_runtime.launch.results.summary import summarise

HOSTILE = "<script>alert('&')</script> $\\frac$ \x1b[2J"


@pytest.fixture
def run(table: Table, tmp_path: Path) -> Any:
    """Makes the directory of a run that has ended."""

    def make(name: str, error: str | None = None, **keys: Any) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        figures = {"wall_s": 70.0, "cpu_s": 90.0, "setup_s": 5.0}
        ended = {"name": name, "seed": 0, "state": "failed" if error else "finished"}
        summary = {**ended, "error": error, **figures}
        summary |= summarise(parsed(table), status_of(10), [], [])
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "config.toml").write_text(tomli_w.dumps({"run": {"name": name, **keys}}))
        lines = [
            {"time": 1.0 * step, "policy": "solver", "step": step, "reward": step / 10, "metrics": {"loss": 0.1}}
            for step in range(1, 5)
        ]  # fmt: skip
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    return make


def page(file: Path, *arguments: object) -> str:
    assert main(["report", "--html", str(file), *map(str, arguments)]) == 0
    text = file.read_text("utf-8")
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(picture)
    assert "<script" not in text
    others = set(re.findall(r"(?:src|href)=\"([^\"#][^\"]*)", text))
    assert others == set(), "it needs other files"
    return text


@pytest.mark.slow
def test_a_page_has_table_curves_and_configuration(run: Any, tmp_path: Path) -> None:
    text = page(tmp_path / "report.html", "--run", run("one", error=HOSTILE, steps=20))
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)&lt;/script&gt;" in text and "\x1b" not in text
    assert text.count("<svg") == 1 and "steps = 20" in text
    assert '<th scope="row">staleness</th>' in text


@pytest.mark.slow
def test_runs_are_compared(run: Any, tmp_path: Path) -> None:
    one, other = run("one", steps=20, seed=1), run(HOSTILE.replace("/", ""), steps=20, seed=2)
    text = page(tmp_path / "report.html", "--run", one, "--compare", other)
    assert page(tmp_path / "named.html", one, other).count("<svg") == 3
    assert text.count("<svg") == 3
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids)), "one picture would take parts of another"
    differences = text[text.index("Differences in configuration") :]
    assert ">run.seed</th><td>1</td><td>2</td>" in differences
    assert ">run.steps</th>" not in differences and ">run.name</th>" not in differences


@pytest.mark.slow
def test_a_page_shows_no_secrets_of_the_configuration(run: Any, tmp_path: Path) -> None:
    folders = []
    for name in ("one", "two"):
        folders.append(run(name, url=f"http://u:S3CR{name}@host/v1?api_key=S3CR"))
        file = folders[-1] / "config.toml"
        more = f'[reward.headers]\nx-team = "S3CR{name}"\n'
        file.write_text("# a note\n" + file.read_text() + more)
    text = page(tmp_path / "report.html", "--run", folders[0], "--compare", folders[1])
    assert "S3CR" not in text and "# a note" in text
    assert "http://***@host/v1?api_key=***" in text


def test_a_run_that_continues_is_shown_by_top(run: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run("one")
    (folder / "summary.json").rename(folder / "dataflow.json")
    assert main(["report", "--run", str(folder)]) == 2
    assert f"`astraflow top --run {folder}` shows a running run" in capsys.readouterr().err


def test_wrong_arguments_are_named(
    run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = str(run("one"))
    html = ["--html", str(tmp_path / "report.html")]
    for arguments, says in (
        (["--compare", one], "give --html FILE too"),
        ([one, one], "give --html FILE too"),
        ([one, "--run", one], "name a run once"),
        ([*html, "--compare", one], "is given twice"),
        ([*html, "--compare", str(tmp_path / "none")], "neither a run directory"),
        ([*html, "--compare", *(str(run(f"r{n}")) for n in range(8))], "a page has 8 at most"),
        (["--html", str(tmp_path / "no" / "report.html")], "there is no folder"),
    ):
        assert main(["report", "--run", one, *arguments]) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
