"""The documents are correct: generated pages are current, and what they name exists."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import dev
import docs
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pages.decisions import UNSORTED, decisions, slug
from pages.included import with_includes
from pages.markdown import BEGIN, END, FENCED, prose
from pages.processes import dataflow_app, raas_app
from pages.workspace_catalog import catalog
from pydantic import BaseModel
from workspace import HEAVY, ROOT, components, guides, nodes_of, tracked_files

from astraflow_core.capabilities import CAPABILITIES
from astraflow_core.catalog import Catalog
from astraflow_core.config.models import ComponentTable, RunConfig
from astraflow_core.config.rendering import models_in
from astraflow_runtime.cli import parser
from astraflow_runtime.cli.helping import every_command
from astraflow_runtime.cli.installation.docstrings import docstring_of

CORE = ROOT / "core" / "src" / "astraflow_core"
RUNTIME = ROOT / "runtime" / "src" / "astraflow_runtime"
WIRE = ROOT / "libs" / "wire" / "src" / "astraflow_wire"
MARKDOWN = [f for f in tracked_files() if f.suffix == ".md" and "scaffold" not in f.parts]


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def snippets(text: str) -> Iterator[str]:
    """What a document sets as code, in blocks and in lines."""
    yield from (block for _, _, block in FENCED.findall(text))
    yield from re.findall(r"`([^`\n]+)`", FENCED.sub("", text))


def mentioned(pattern: str) -> set[tuple[str, ...]]:
    """(file, groups…) for each match of the pattern in code of the guides and package READMEs."""
    return {
        (str(file.relative_to(ROOT)), *found.groups())
        for file in MARKDOWN
        for snippet in snippets(file.read_text(encoding="utf-8"))
        for found in re.finditer(pattern, snippet)
    }


# --- generated pages ---------------------------------------------------------------------------


def test_generated_pages_are_current() -> None:
    names = [file.name for file in docs.stale()]
    assert not names, f"stale: {', '.join(names)}; `make docs` fixes that"


@pytest.mark.slow
def test_a_stale_page_is_named_with_its_fix_and_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in (*docs.DOCS.glob("*.md"), docs.DISTRIBUTIONS):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(docs, "DOCS", tmp_path)
    monkeypatch.setattr(docs, "DISTRIBUTIONS", tmp_path / docs.DISTRIBUTIONS.name)
    processes = tmp_path / "processes.md"
    processes.write_text(processes.read_text().replace("### LeaseTasks", "### LendTasks"))
    guide = tmp_path / "write-a-plugin.md"
    guide.write_text(guide.read_text().replace("class LeaveOneOut:", "class LeaveTwoOut:"))
    (tmp_path / "hooks.md").unlink()
    assert docs.main(["--check"]) == 1
    told = capsys.readouterr().err
    assert "processes.md is stale; `make docs`" in told and "hooks.md" in told
    assert "write-a-plugin.md is stale" in told
    assert not (tmp_path / "hooks.md").exists()
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    assert "### LeaseTasks" in processes.read_text()
    assert processes.read_text().startswith("# Processes")


def test_included_blocks_are_the_files_and_definitions_that_they_name() -> None:
    script = "scripts/pages/included.py"
    text = text_of(script)
    block = "```python\nold\n```\n"
    marks = (
        f"<!-- from {script} -->\n{block}\nprose\n\n<!-- from {script}: with_includes -->\n{block}"
    )
    whole, definition = (code for _, _, code in FENCED.findall(with_includes(marks)))
    assert whole == text
    imports, _, definition = definition.partition("\n\n\n")
    assert imports == "import re\nfrom included import _BLOCK, _part"
    assert definition.startswith("def with_includes(") and definition in text
    assert definition.rstrip().endswith("return _BLOCK.sub(renew, text)")
    for wrong in ("scripts/none.py", f"{script}: none"):
        with pytest.raises(dev.Failure, match="none"):
            with_includes(f"<!-- from {wrong} -->\n{block}")


def test_every_block_of_the_guide_that_is_code_is_included() -> None:
    named = set()
    for file in sorted((ROOT / "docs").glob("write-a*-*.md")):
        guide = file.read_text(encoding="utf-8")
        code = [language for _, language, _ in FENCED.findall(guide) if language == "python"]
        marks = re.findall(r"^<!-- from (\S+?)(?:: \w+)? -->\n```python$", guide, re.MULTILINE)
        assert len(code) == len(marks) > 3, file
        named.update(marks)
    outside = ROOT / "examples" / "plugins"
    modules = {f for f in outside.glob("*/src/*/*.py") if f.name != "__init__.py"}
    assert modules and {str(file.relative_to(ROOT)) for file in modules} <= named


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_pages_are_made_alike_in_every_process_and_without_a_backend() -> None:
    script = (
        "import hashlib, sys, docs\n"
        "print(hashlib.sha256(repr(sorted(docs.pages().items())).encode()).hexdigest())\n"
        f"print(*sorted(set(sys.modules) & {HEAVY!r}))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": str(ROOT / "scripts"), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=280,
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert told[0][1:] == [""], f"imported for documents: {told[0][1]}"


def test_every_hook_has_a_heading_with_its_arguments() -> None:
    headings = re.findall(r"^### `(astraflow_\w+)\((.*?)\) ->", text_of("docs/hooks.md"), re.M)
    found = {name: re.findall(r"(\w+): ", arguments) for name, arguments in headings}
    specified = {
        node.name: [argument.arg for argument in node.args.args[1:]]
        for node in nodes_of(CORE / "hookspecs.py")
        if isinstance(node, ast.FunctionDef)
    }
    assert found == specified
    assert specified["astraflow_step_ended"] == ["run", "step", "metrics"]


def test_every_capability_is_described() -> None:
    page = text_of("docs/hooks.md")
    for flags in CAPABILITIES.values():
        for flag, promise in flags.items():
            assert f"| `{flag}` | {promise} |" in page


def rows_of(section: str) -> dict[str, list[str]]:
    """Table of keys: key -> its other cells."""
    lines = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", section, re.MULTILINE)
    return {key: re.split(r"(?<!\\) \| ", rest) for key, rest in lines}


def sections(page: str, level: str) -> dict[str, str]:
    """Title of each section of that level -> its text, deeper sections included."""
    parts = re.split(rf"^{level} (.+)$", page, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_key_of_the_core_is_described() -> None:
    tables = sections(text_of("docs/configuration.md"), "##")

    def check(model: type[BaseModel], name: str, prefix: str) -> None:
        for key, field in model.model_fields.items():
            if isinstance(field.annotation, type) and issubclass(field.annotation, ComponentTable):
                assert f"{prefix}{key}.use" in rows_of(tables[name])
            elif (name, key) not in (("`[eval]`", "sets"),) and key != "data":
                type_, default, about = rows_of(tables[name])[f"{prefix}{key}"]
                assert type_ and default and about, f"{name} {key}"
                assert (default == "required") == field.is_required(), f"{name} {key}"

    for table, field in RunConfig.model_fields.items():
        name = f"`[{table}.NAME]`" if table == "policies" else f"`[{table}]`"
        for model in models_in(field.annotation):
            if table != "launcher":
                check(model, name, "")
    policy = rows_of(tables["`[policies.NAME]`"])
    assert {"data.N.use", "trainer.ranks", "engine.python", "transport.use"} <= policy.keys()
    assert "sets.NAME.use" in rows_of(tables["`[eval]`"])
    assert rows_of(tables["`[launcher]`"])["use"][1] == '`"local"`'


def test_every_component_of_the_workspace_is_described_with_its_keys() -> None:
    described = sections(text_of("docs/configuration.md"), "###")
    catalog = Catalog.discover()
    assert len(components()) > 5
    for component in components():
        section = described[f"{component.kind.replace('_', ' ')} `{component.name}`"]
        own = section.partition("\n## ")[0]
        model = catalog.select(component.kind, component.name).config_model()
        keys = {} if model is None else model.model_fields
        tops = {key.partition(".")[0] for key in rows_of(own)}
        assert tops == {field.alias or key for key, field in keys.items()}, component
        for key, (_, _, about) in rows_of(own).items():
            assert about, f"{component.kind} {component.name}: {key} says nothing about itself"


def test_every_algorithm_names_the_public_variant_that_it_implements() -> None:
    page = text_of("docs/configuration.md")
    named = {component.name for component in components() if component.kind == "algorithm"}
    for selected in Catalog.discover().components("algorithm"):
        if selected.component.name in named:
            about = docstring_of(selected.component.target)
            paper = re.search(r"\b(19|20)\d\d\b|https?://|arXiv", about)
            assert paper, f"{selected.component.target}: name paper and year, and the variant"
            assert prose(about) in page


@pytest.mark.parametrize(("title", "make_app"), [("Dataflow", dataflow_app), ("RaaS", raas_app)])
def test_every_endpoint_is_described_and_no_other(title: str, make_app: type[FastAPI]) -> None:
    section = sections(text_of("docs/processes.md"), "###")[title]
    found = re.findall(r"^\| (GET|POST) `(\S+)` \|", section, re.MULTILINE)
    client = TestClient(make_app())
    for method, path in found:
        refused = client.request("PATCH", path)
        assert (refused.status_code, refused.headers.get("allow")) == (405, method), path
    place = {"Dataflow": "dataflow/http/service.py", "RaaS": "raas/monitor.py"}[title]
    written = {
        node.value
        for node in nodes_of(RUNTIME / place)
        if isinstance(node, ast.Constant) and re.match(r"/(v1/|metrics$)", str(node.value))
    }
    assert {path for _, path in found} == written


def test_every_call_of_a_service_is_to_a_described_endpoint() -> None:
    section = sections(text_of("docs/processes.md"), "###")["Dataflow"]
    described = set(re.findall(r"^\| POST `(\S+)` \|", section, re.MULTILINE))
    called = {
        str(node.args[0].value)
        for part in (*(RUNTIME / name for name in ("raas", "trainer", "launch", "cli")), WIRE)
        for file in part.rglob("*.py")
        for node in nodes_of(file)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".post", "._post", ".post_bytes", ".post_for_bytes"))
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip
    assert called == described


# --- what documents name -----------------------------------------------------------------------


ALL_COMMANDS = dict(every_command(parser(catalog().plugins)))


def commands_in(help_text: str) -> set[str]:
    return set(re.findall(r"^ {4}([a-z]\w*)(?: |$)", help_text, re.MULTILINE))


def subcommands(command: str) -> set[str]:
    """The second words of a command that has some."""
    paths = (path.split() for path in ALL_COMMANDS)
    return {words[1] for words in paths if words[0] == command and words[1:]}


def first_words() -> set[str]:
    return {path.split()[0] for path in ALL_COMMANDS}


def test_every_command_is_mentioned() -> None:
    listed = first_words()
    assert {"run", "plugins", "doctor", "config"} <= listed
    text = "".join(file.read_text(encoding="utf-8") for file in guides())
    missing = [name for name in sorted(listed) if not re.search(rf"astraflow {name}\b", text)]
    assert not missing, f"no document mentions: {', '.join(missing)}"


def commands_of_examples() -> set[str]:
    manifests = (ROOT / "examples" / "plugins").glob("*/src/*/manifest.py")
    found = (re.search(r'Command\(\s*name="([a-z-]+)', file.read_text()) for file in manifests)
    return {match[1] for match in found if match}


def test_every_mentioned_command_exists() -> None:
    listed = first_words() | commands_of_examples()
    named = mentioned(r"\bastraflow ([a-z][\w-]*)(?: ([a-z]+)(?= |$|`))?")
    wrong = []
    for file, command, word in sorted(named, key=str):
        if command not in listed:
            wrong.append(f"{file}: astraflow {command}")
        elif word and (known := subcommands(command)) and word not in known:
            wrong.append(f"{file}: astraflow {command} {word}")
    assert not wrong, wrong


def test_mentioned_make_targets_and_scripts_exist() -> None:
    targets = set(re.findall(r"^(\w+):", text_of("Makefile"), re.MULTILINE))
    shown = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "dev.py"), "--help"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    commands = commands_in(shown.stdout)
    assert {"run", "test", "check", "bench", "docs"} <= targets & commands
    assert targets <= commands
    made = mentioned(r"\bmake ([a-z]+)\b")
    called = mentioned(r"scripts/dev\.py ([a-z]+)\b")
    assert {(file, name) for file, name in made if name not in targets} == set()
    assert {(file, name) for file, name in called if name not in commands} == set()
    assert {name for _, name in made} == targets, "a target that no document mentions"


@cache
def anchors(file: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    text = FENCED.sub("", file.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {slug(heading) for heading in headings}


def test_relative_links_lead_somewhere() -> None:
    broken, count = [], 0
    for file in MARKDOWN:
        text = FENCED.sub("", file.read_text(encoding="utf-8"))
        text = re.sub(r"`[^`\n]*`(?!\])", "", text)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"\w+:", target):
                continue
            count += 1
            path, _, anchor = target.partition("#")
            there = (file.parent / path).resolve() if path else file
            if not there.exists() or (anchor and anchor not in anchors(there)):
                broken.append(f"{file.relative_to(ROOT)}: {target}")
    assert count > 1000 and not broken, broken


def test_rows_of_a_table_have_the_columns_of_its_head() -> None:
    """A row that a reflow has joined to the next one, or to the paragraph below, has more."""
    wrong, count = [], 0
    for file in MARKDOWN:
        text = FENCED.sub("", file.read_text(encoding="utf-8"))
        for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            rows = table.splitlines()
            columns = [re.sub(r"(`+).*?\1|\\\|", "", row).count("|") for row in rows]
            count += 1
            wrong += [
                f"{file.relative_to(ROOT)}: {row[:60]}"
                for row, found in zip(rows, columns, strict=True)
                if found != columns[0]
            ]
    assert count > 100
    assert not wrong, "\n".join(wrong)


def test_citations_of_decisions_name_a_heading() -> None:
    known, wrong = anchors(ROOT / "docs" / "decisions.md"), []
    for file in tracked_files():
        if file.suffix not in (".py", ".md", ".toml", ".txt") or "tests" in file.parts:
            continue
        text = file.read_text(encoding="utf-8")
        for anchor in re.findall(r"\bdecisions\.md(?:#([\w-]+))?(?=[`)])", text):
            if anchor not in known and (
                anchor or (file.suffix == ".py" and "scripts" not in file.parts)
            ):
                wrong.append(f"{file.relative_to(ROOT)}: decisions.md#{anchor}")
    assert len(known) > 100 and not wrong, wrong


def test_a_decision_that_is_appended_gets_a_heading_and_is_listed() -> None:
    page = f"# Decisions\n\n{BEGIN}\n{END}\n\n### One: first\n<!-- topic: Engines -->\n\nText.\n**Two `x`,\nlater.** More.\n"
    made = decisions(page)
    assert made.endswith("Text.\n\n### Two `x`, later\n\nMore.\n")
    assert "Engines:\n\n- [One: first](#one-first)\n" in made
    assert f"{UNSORTED}:\n\n- [Two `x`, later](#two-x-later)\n" in made
    assert decisions(made) == made


@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (
            "### One\n<!-- topic: Nothing -->\n",
            "'One' has the topic 'Nothing'; expected one of Dataflow",
        ),
        ("### One\n\nText.\n\n### `One`\n", "headings of the same name: one"),
    ],
)
def test_a_decision_that_cannot_be_listed_is_named(decision: str, told: str) -> None:
    with pytest.raises(dev.Failure, match=re.escape(told)):
        decisions(f"{BEGIN}\n{END}\n\n{decision}")
    with pytest.raises(dev.Failure, match="must hold the lines"):
        decisions(decision)


def meant(path: str) -> Path:
    """The file or folder that the overview names by a short path."""
    first, _, rest = path.partition("/")
    library = ROOT / "libs" / first / "src" / f"astraflow_{first}"
    if library.is_dir():
        return library / rest
    if (CORE / first).exists():
        return CORE / path
    return (ROOT if first in ("core", "runtime", "plugins", "contrib") else RUNTIME) / path


def test_overview_names_files_that_exist() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[\w.]*)`", text_of("docs/overview.md"))
    missing = [name for name in named if not meant(name).exists()]
    assert named and not missing, missing


def test_code_blocks_can_be_read() -> None:
    wrong, count = [], 0
    for file in MARKDOWN:
        for indent, language, block in FENCED.findall(file.read_text(encoding="utf-8")):
            block = re.sub(f"^{indent}", "", block, flags=re.MULTILINE)
            try:
                if language == "python":
                    compile(block, str(file), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                elif language == "toml":
                    tomllib.loads(block)
                count += 1
            except (ValueError, SyntaxError) as error:
                wrong.append(f"{file.relative_to(ROOT)}: {error!r} in\n{block}")
    assert count > 500 and not wrong, "\n".join(wrong)
