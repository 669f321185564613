"""Checks of the metadata of a built distribution."""

from __future__ import annotations

import configparser
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from email.message import Message
from email.parser import Parser
from pathlib import Path

import wheels
from installers import Failure
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from workspace import normal

from releasing.stamping import PREFIX

LICENCE = "Apache-2.0"
OLDEST_PYTHON = "3.11"

# Run by the interpreter of the release's tools: what an index shows of a README.
_RENDER = """
import json, sys
from readme_renderer import markdown
texts = json.load(open(sys.argv[1], encoding="utf-8"))
print(json.dumps([name for name, text in texts.items() if not (markdown.render(text) or "").strip()]))
"""


def inspect(
    built: Mapping[str, tuple[Path, Path]], versions: Mapping[str, str], tools: Path, work: Path
) -> None:
    """Look at every wheel and sdist; one :class:`Failure` lists all that is wrong. ``versions`` are those of all
    distributions of the tree, ``tools`` is the interpreter that can render a README."""
    wrong: list[str] = []
    readmes = {}
    for name, (sdist, wheel) in built.items():
        message, points, files = read(wheel)
        wrong += [f"{wheel.name}: {problem}" for problem in problems(message, versions)]
        wrong += [f"{wheel.name}: {problem}" for problem in _lost(points, files)]
        readmes[name] = str(message.get_payload())
        if not any(file.endswith(".dist-info/licenses/LICENSE") for file in files):
            wrong.append(f"{wheel.name}: lacks the text of its licence")
        with tarfile.open(sdist) as archive:
            members = {member.partition("/")[2] for member in archive.getnames()}
        if lacking := {"pyproject.toml", "README.md", "PKG-INFO", "LICENSE"} - members:
            wrong.append(f"{sdist.name}: lacks {', '.join(sorted(lacking))}")
    given = work / "readmes.json"
    given.write_text(json.dumps(readmes), encoding="utf-8")
    unreadable = json.loads(wheels.execute(str(tools), "-c", _RENDER, str(given)))
    wrong += [f"{name}: an index cannot render its README" for name in unreadable]
    if wrong:
        raise Failure("metadata:\n  " + "\n  ".join(wrong))


def read(wheel: Path) -> tuple[Message, configparser.ConfigParser, set[str]]:
    """Metadata, entry points and file names of a wheel."""
    points = configparser.ConfigParser(delimiters=("=",))
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        info = next(n for n in files if n.endswith(".dist-info/METADATA")).removesuffix("METADATA")
        message = Parser().parsestr(archive.read(info + "METADATA").decode())
        if info + "entry_points.txt" in files:
            points.read_string(archive.read(info + "entry_points.txt").decode())
    return message, points, files


def problems(message: Message, versions: Mapping[str, str]) -> Iterator[str]:
    """What is wrong with the metadata of one distribution."""
    name = normal(message["Name"] or "")
    expected = {
        "Version": versions.get(name, "of a distribution of this tree"),
        "License-Expression": LICENCE,
        "Requires-Python": f">={OLDEST_PYTHON}",
        "Description-Content-Type": "text/markdown",
    }
    for field, value in expected.items():
        if (found := message[field] or "none").partition(";")[0] != value:
            yield f"{field} is {found}, expected {value}"
    if not message["Summary"]:
        yield "has no summary"
    asked = [Requirement(line) for line in message.get_all("Requires-Dist", ())]
    bounded = set()
    for each in asked:
        if each.url:
            yield f"{each}: an index refuses a requirement with a URL"
        if normal(each.name).startswith(PREFIX):
            other = versions.get(normal(each.name))
            if other is None:
                yield f"{each}: there is no such distribution"
            elif not each.specifier.contains(other, prereleases=True):
                yield f"{each}: this release has {other}"
            if is_bounded(each.specifier):
                bounded.add(normal(each.name))
    ours = {normal(each.name) for each in asked if normal(each.name).startswith(PREFIX)}
    for each_name in sorted(ours - bounded):
        yield f"requires {each_name} without an upper bound, as in {each_name}>=0.1,<0.2"


def is_bounded(specifier: SpecifierSet) -> bool:
    """Whether a requirement excludes later versions that may differ."""
    return any(each.operator in ("<", "<=", "==", "~=") for each in specifier)


def _lost(points: configparser.ConfigParser, files: set[str]) -> Iterator[str]:
    """Entry points whose module is not in the wheel."""
    for group in points.sections():
        for name, value in points[group].items():
            module = value.partition(":")[0].strip().replace(".", "/")
            if not {f"{module}.py", f"{module}/__init__.py"} & files:
                yield f"entry point {name} of {group} names {value}, which is not in the wheel"
