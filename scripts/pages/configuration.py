"""docs/configuration.md: every key of the core and of the components of this workspace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
from pydantic import BaseModel

from astraflow_core.catalog import Selected
from astraflow_core.component import Kind
from astraflow_core.config.models import RunConfig
from astraflow_core.config.tables import component_tables
from astraflow_core.hookspecs import PROJECT
from astraflow_runtime.cli.installation.docstrings import docstring_of
from astraflow_runtime.config.explain import KeyDescription, component_keys, core_keys
from pages.markdown import GENERATED, code, codes, page, prose, table
from pages.workspace_catalog import anchor, catalog, home, providers, title


def configuration() -> str:
    """The page of all keys."""
    return page(
        "# Configuration",
        GENERATED,
        """
A run is one TOML file with one table per role. A table that names a component by `use` also holds the
keys of that component, which are listed with it below. Unknown keys are errors. `NAME` stands for a name
of yours (lower-case letters, digits and underscores, a letter first), `N` for a place in a list.

- `use` is a component's name, `plugin/name`, or `module:attr` for code of yours that is in no package. If several
  installed plugins provide a name, a resumed run keeps the component that it began with, and a new run takes the one
  from AstraFlow itself. If none of them is from AstraFlow, write `plugin/name`. So installing a plugin changes no run.
  `transport = { use = "auto" }` leaves the choice to a plugin ([astraflow_choose_transport](hooks.md)).
- `extends = "base.toml"` at the top of a file starts from another file, found from the folder of the one
  that names it. Tables are merged key by key; a table that names another component replaces the one
  before, one that names the same component keeps its other keys, and the head of the run says which.
- `"none"` disables a key whose type allows it, and overrides a default or an extended file: TOML has no null. Where 0
  disables a key, its description says that.
- `--set run.steps=10` overrides one value, `--set policies.solver.data.0.use=…` one inside a list. Naming another component
  (`--set policies.solver.engine.use=vllm`) drops the keys of the previous one, and the head of the run lists them. Keys of
  every engine, trainer and prompt source, such as `replicas`, `devices`, `ranks` and `shuffle`, stay, but `python` does not.
- Relative paths start from the folder of the file that sets them, those of `--set` from the current folder. The module of a
  `module:attr` is looked for as Python does, then in the folder of the file that names it, then in the current folder. A run's
  own `config.toml` has absolute paths, so that it continues from anywhere.
- `astraflow config explain KEY` prints what a key means, `astraflow config show FILE` where each value of a run comes
  from, and `astraflow config schema --json` the schema for an editor.
""",
        *_core_tables(),
        "# Components",
        "What this repository provides. `astraflow plugins` lists what is installed where you are; the "
        "README of a package says when to use it, its limits, and what was measured.",
        *(part for kind in Kind for part in _components(kind)),
        _model_references(),
    )


def _core_tables() -> Iterator[str]:
    kinds = _kinds_of_tables()
    keys = core_keys()
    for name, field in RunConfig.model_fields.items():
        top = f"{name}.NAME" if any(key.path.startswith(f"{name}.NAME.") for key in keys) else name
        rows = [
            _row(key, key.path.removeprefix(f"{top}."), kinds.get(key.path.removesuffix(".use")), field.default)
            for key in keys
            if key.path.startswith(f"{top}.")
        ]  # fmt: skip
        yield f"## `[{top}]`"
        yield field.description or ("" if field.is_required() else "This table may be left out.")
        yield table(("key", "type", "default", ""), rows)


def _kinds_of_tables() -> dict[str, Kind]:
    """Dotted path of each table that names a component -> the kind of it."""
    skeleton: dict[str, Any] = {}
    for key in core_keys():
        here: Any = skeleton
        parts = key.path.split(".")
        for part, after in pairwise(parts):
            if isinstance(here, list):
                here.append({})
                here = here[-1]
            else:
                here = here.setdefault(part, [] if after == "N" else {})
    return {re.sub(r"\.\d+", ".N", p.path): p.kind for p in component_tables(skeleton)}


def _row(
    key: KeyDescription, name: str, kind: Kind | None, table_default: object
) -> tuple[str, ...]:
    default = key.default
    if default is None:  # required in its table, but the whole table may have a default
        given = getattr(table_default, name, None) if isinstance(table_default, BaseModel) else None
        default = "" if given is None else msgspec.json.encode(given).decode()
    elif default == "null":
        default = "none"
    names_component = kind is not None and key.path.endswith(".use")
    about = f"The {anchor(kind)}." if kind and names_component else prose(key.description)
    state = "none" if default == "none" else code(default) or "required"
    type_ = "string" if names_component else key.type.removesuffix(" or nothing")
    return code(name), re.sub(r"matching (\S+)", r"matching `\1`", type_), state, about


def _components(kind: Kind) -> Iterator[str]:
    yield f"## {title(kind)}"
    found = list(catalog().components(kind))
    if not found:
        yield "This repository provides none yet."
    for selected in found:
        yield f"### {kind.value.replace('_', ' ')} `{selected.component.name}`"
        yield _component(selected)


def _component(selected: Selected) -> str:
    component = selected.component
    summary = component.summary[:1].upper() + component.summary[1:]
    flags = codes(component.capabilities) or "none"
    keys = component_keys(catalog(), selected.kind, selected.qualified)
    prefix = f"{selected.kind}/{selected.qualified}."
    rows = [_row(key, key.path.removeprefix(prefix), None, None) for key in keys]
    # A data policy of the core has no README that would say what it computes.
    computes = selected.kind is Kind.ALGORITHM or "scale" in component.capabilities
    implements = docstring_of(component.target) if computes else ""
    return page(
        f"{summary}. In {home(selected.plugin)}. Capabilities: {flags}.",
        prose(implements),
        table(("key", "type", "default", ""), rows) if rows else "It takes no keys.",
    )


def _model_references() -> str:
    plugins = providers(f"{PROJECT}_resolve_model")
    homes = "\n".join(f"- `{plugin.name}` in {home(plugin.name)}" for plugin in plugins)
    return page(
        "## Model references",
        "`policies.NAME.model` is a local Hugging Face folder, or a reference `SCHEME:REST` that one of "
        "these plugins turns into one before a run starts; their READMEs list the schemes they support:"
        if plugins
        else "`policies.NAME.model` is a local Hugging Face folder, or a reference `SCHEME:REST` that an "
        "installed plugin turns into one before a run starts; this repository provides none yet.",
        homes,
    )
