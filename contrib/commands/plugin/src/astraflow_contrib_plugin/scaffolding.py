"""From the files below ``scaffold/`` to those of a distribution with another name.

The templates are a working plugin named ``sample_thing``; making another one replaces that name in its spellings.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import keyword
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from astraflow_core.catalog import Catalog
from astraflow_core.component import Kind
from astraflow_core.errors import UserError
from astraflow_core.suggestions import did_you_mean

KINDS = (
    "algorithm",
    "command",
    "data_policy",
    "engine",
    "environment",
    "launcher",
    "prompt_source",
    "reward",
    "tracker",
    "trainer",
    "transport",
    "workflow",
)
"""Kinds, each with a template; those of components and ``command``."""
_NEEDS = {
    "engine": ("safetensors>=0.4",),
    "launcher": ("astraflow-launching>=0.1,<0.2",),
    "trainer": ("safetensors>=0.4",),
    "transport": ("astraflow-weights>=0.1,<0.2", "astraflow-wire>=0.1,<0.2"),
}
"""What the template of a kind needs in addition to what all need."""
_RUN = (
    "astraflow-contrib-prompts",
    "astraflow-contrib-rewards",
    "astraflow-contrib-single-turn",
    "astraflow-contrib-tiny-models",
    "astraflow-plugin-http",
    "astraflow-plugin-three-zones",
)
_RUN_OF = {
    "algorithm": (
        "astraflow-plugin-torch-engine[runtime]",
        "astraflow-plugin-torch-trainer[runtime]",
    ),
    "engine": ("astraflow-testing",),
    "trainer": ("astraflow-testing",),
}
_RUN_OF_OTHERS = (*_RUN_OF["algorithm"], "astraflow-plugin-losses[runtime]")
_RUN_MORE = {"environment": ("astraflow-contrib-environment",)}
"""The distributions of the plugins that ``run.toml`` and ``base.toml`` of a kind name."""
_WITHOUT_BASE = ("command", "engine", "trainer")
"""Kinds whose template has no run, or one that does not extend ``base.toml``."""
_TEMPLATES = Path(__file__).parent / "scaffold"
_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_LONGEST_NAME = 40
_PACKAGE = "src/astraflow_plugin_sample_thing"
_PLACES = {
    "manifest.py": f"{_PACKAGE}/manifest.py",
    "component.py": f"{_PACKAGE}/component.py",
    "sampled.py": f"{_PACKAGE}/sampled.py",
    "test_conformance.py": "tests/test_conformance.py",
    "pyproject.toml.txt": "pyproject.toml",
    "gitignore.txt": ".gitignore",
    "ci.yml": ".github/workflows/ci.yml",
}
"""Where a template goes if not to the same path."""


@dataclass(frozen=True, slots=True)
class PluginNames:
    """The spellings of ``name``, a valid one."""

    kind: str
    name: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            hint = did_you_mean(self.kind, KINDS) or "; expected one of: " + ", ".join(KINDS)
            raise UserError(f"unknown kind {self.kind!r}{hint}")
        if (
            not _NAME.fullmatch(self.name)
            or keyword.iskeyword(self.name)
            or len(self.name) > _LONGEST_NAME
        ):
            raise UserError(
                f"NAME {self.name!r}: expected at most {_LONGEST_NAME} lower-case letters, digits and single '_', a "
                "letter first, and no keyword of Python; for example 'short_answer'"
            )

    @property
    def dashed(self) -> str:
        """``short-answer``."""
        return self.name.replace("_", "-")

    @property
    def component(self) -> str:
        """Name by which a config or ``astraflow`` calls it; that of a command has dashes."""
        return self.dashed if self.kind == "command" else self.name

    @property
    def module(self) -> str:
        """``astraflow_plugin_short_answer``, also the name of the folder."""
        return f"astraflow_plugin_{self.name}"

    def replaced(self, text: str) -> str:
        """``text`` of a template, for this name."""
        for old, new in (
            ("sample_thing", self.name),
            ("sample-thing", self.dashed),
            ("SampleThing", camel(self.name)),
            ("sample kind", self.kind.replace("_", " ")),
        ):
            text = text.replace(old, new)
        return text


def camel(name: str) -> str:
    """``ShortAnswer`` of ``short_answer``."""
    return "".join(part.capitalize() for part in name.split("_"))


def check(names: PluginNames, catalog: Catalog) -> None:
    """Raise :class:`UserError` if something that is installed has one of these names."""
    distribution = f"astraflow-plugin-{names.dashed}"
    if names.kind == "command":
        from astraflow_runtime.cli.commands import all_of

        entry = all_of(catalog.plugins).get(names.component)
        owner = entry.distribution if entry is not None else None
    else:
        found = (s for s in catalog.components(Kind(names.kind)) if s.component.name == names.name)
        owner = next((selected.qualified for selected in found), None)
    if owner is not None:
        raise UserError(
            f"the {names.kind.replace('_', ' ')} {names.component!r} is installed already ({owner}); choose another NAME"
        )
    try:
        importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        if importlib.util.find_spec(names.module) is None:
            return
    raise UserError(f"a distribution {distribution} is installed already; choose another NAME")


def files_of(names: PluginNames) -> dict[str, str]:
    """Path below the new folder → text."""
    files = {}
    for root in (_TEMPLATES / "common", _TEMPLATES / names.kind):
        for file in sorted(root.rglob("*")):
            relative = file.relative_to(root).as_posix()
            if not file.is_file() or "__pycache__" in file.parts:
                continue
            if names.kind in _WITHOUT_BASE and relative == "base.toml":
                continue
            text = file.read_text(encoding="utf-8")
            files[names.replaced(_PLACES.get(relative, relative))] = names.replaced(text)
    usage = files.pop("usage.md")
    files["README.md"] = files["README.md"].replace("<!-- usage -->\n", usage)
    needs = "".join(f', "{requirement}"' for requirement in _NEEDS.get(names.kind, ()))
    last = '"pydantic>=2"'
    project = files["pyproject.toml"].replace(last, last + needs)
    if names.kind == "algorithm":  # its suite calls the loss
        project = project.replace('"ruff"]', '"ruff", "torch>=2.6"]')
    files["pyproject.toml"] = project.replace("# run extra\n", _run_extra(names.kind))
    if names.kind == "command":
        files["README.md"] = re.sub(
            r"\n`pip install -e '\.\[run\]'`.*?\n\n", "\n", files["README.md"], flags=re.S
        )
    return files


def _run_extra(kind: str) -> str:
    """The extra with what the run of a kind needs, as lines of ``pyproject.toml``; a command has no run."""
    if kind == "command":
        return ""
    needed = (*_RUN, *_RUN_OF.get(kind, _RUN_OF_OTHERS), *_RUN_MORE.get(kind, ()))
    lines = "".join(f'    "{name}>=0.1,<0.2",\n' for name in sorted(needed))
    return f"run = [\n{lines}]\n"


def write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Make ``folder``, which must not exist, with ``files``; after an error nothing of it is left."""
    try:
        folder.mkdir()
    except FileExistsError:
        raise UserError(f"{folder} exists; remove it, or give another --directory") from None
    except FileNotFoundError:
        raise UserError(f"{folder}: there is no folder {folder.parent}; create it first") from None
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from error
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise UserError(f"{folder} cannot be written: {error.strerror}") from error
        raise
    return [folder / name for name in files]
