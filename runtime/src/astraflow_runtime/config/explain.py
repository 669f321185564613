"""What each key means: path, type, default and description, read from the models."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from astraflow_core.component import Kind
from astraflow_core.config.models import RunConfig
from astraflow_core.config.rendering import join
from astraflow_core.config.tables import component_tables
from astraflow_core.errors import UserError
from astraflow_core.suggestions import did_you_mean
from astraflow_runtime.config.show import Value, values

if TYPE_CHECKING:
    from astraflow_core.catalog import Catalog
    from astraflow_core.config.load import LoadedConfig

_BOUNDS = {
    "minimum": "≥",
    "exclusiveMinimum": ">",
    "maximum": "≤",
    "exclusiveMaximum": "<",
    "minLength": "length ≥",
    "minItems": "items ≥",
    "pattern": "matching",
}


@dataclass(frozen=True, slots=True)
class KeyDescription:
    """A key: ``default`` is its JSON, or ``None`` if the key is required."""

    path: str
    type: str
    default: str | None
    description: str

    def line(self) -> str:
        """One line."""
        state = _state(self.default, "default ")
        return f"{self.path}  ({self.type}; {state})  {self.description}".rstrip()

    def text(self) -> str:
        """A paragraph."""
        state = _state(self.default, "default: ")
        body = f"\n  {self.description}" if self.description else ""
        return f"{self.path}{body}\n  type: {self.type}\n  {state}"


def _state(default: str | None, label: str) -> str:
    if default is None:
        return "required"
    return "may be left out" if default == "null" else label + default


def core_keys() -> list[KeyDescription]:
    """Every key of the core; ``NAME`` stands for a name chosen by the user, ``N`` for an index."""
    schema = RunConfig.model_json_schema()
    return list(_walk(schema, schema.get("$defs", {}), ""))


def component_keys(catalog: Catalog, kind: Kind, use: str) -> list[KeyDescription]:
    """The keys of a component, as ``KIND/NAME.KEY``."""
    model = catalog.select(kind, use).config_model()
    if model is None:
        return []
    schema = model.model_json_schema()
    return list(_walk(schema, schema.get("$defs", {}), f"{kind}/{use}"))


def explain(key: str, catalog: Catalog, loaded: LoadedConfig | None = None) -> list[KeyDescription]:
    """The keys that ``key`` means: one, those of a table, or all with that last name. A key of a
    component may be given by its path in a run (``policies.solver.trainer.lr``): then it is a key
    of the component that ``loaded`` has there, or without ``loaded`` of every component of that
    kind with such a key.

    Raises :class:`UserError` with the nearest key if there is none.
    """
    kind, slash, rest = key.partition("/")
    if slash and kind in list(Kind):
        use, _, wanted = rest.partition(".")
        known = component_keys(catalog, Kind(kind), use)
        if not known and not wanted:
            raise UserError(f"{kind} {use!r} takes no keys")
        prefix = f"{kind}/{use}"
        wanted = join(prefix, wanted)
    else:
        known, wanted = core_keys(), key
    found = [entry for entry in known if _means(entry.path, wanted)]
    if not found and "." not in key and not slash:
        found = [entry for entry in known if entry.path.rpartition(".")[2] == key]
    if not found and not slash:
        found = _of_place(key, catalog, loaded)
    if not found:
        paths = [entry.path for entry in known]
        kinds = [entry.kind for entry in catalog.components() if entry.component.name == key]
        hint = did_you_mean(wanted, paths) or did_you_mean(
            key, {path.rpartition(".")[2] for path in paths}
        )
        if kinds:
            named = " or ".join(f"'{kind}/{key}'" for kind in kinds)
            hint = f"; did you mean {named}?"
        raise UserError(
            f"no key {key!r}{hint or ';'} `astraflow config schema` lists the core's keys, and "
            "`astraflow config explain KIND/NAME` those of a component"
        )
    return found


def set_in_run(asked: str, key: KeyDescription, loaded: LoadedConfig) -> list[Value]:
    """The values in a run of the ``key`` that :func:`explain` found for ``asked``."""
    name = key.path.rpartition(".")[2]
    return [
        value
        for value in values(loaded)
        if value.key.rpartition(".")[2] == name
        and (_means(value.key, asked) or _means(key.path, value.key))
    ]


def _of_place(path: str, catalog: Catalog, loaded: LoadedConfig | None) -> list[KeyDescription]:
    """Keys of the components that a path of a run may contain."""
    if loaded is not None and (inner := _of_nested(path, catalog, loaded)):
        return inner
    nested: Any = {}
    for part in reversed(path.split(".")):
        nested = [nested] if part.isdecimal() or part == "N" else {part: nested}
    for place in component_tables(nested if isinstance(nested, dict) else {}):
        rest = ".".join(path.split(".")[place.path.count(".") + 1 :])
        if loaded is not None and (there := loaded.components.get(_index(path, place.path))):
            uses = [there[0].qualified]
        else:
            uses = [entry.qualified for entry in catalog.components(place.kind)]
        keys = [
            (f"{place.kind}/{use}", key)
            for use in uses
            for key in component_keys(catalog, place.kind, use)
        ]
        return [key for prefix, key in keys if _means(key.path, join(prefix, rest))]
    return []


def _of_nested(path: str, catalog: Catalog, loaded: LoadedConfig) -> list[KeyDescription]:
    """Keys of a component whose table is a key of another one, such as an environment's."""
    places = [place for place in loaded.components if path.startswith(f"{place}.")]
    if len(places) < 2:
        return []
    place = max(places, key=len)
    selected, wanted = loaded.components[place][0], path.removeprefix(f"{place}.")
    use = selected.qualified
    return [
        key
        for key in component_keys(catalog, selected.kind, use)
        if _means(key.path, join(f"{selected.kind}/{use}", wanted))
    ]


def _index(path: str, place: str) -> str:
    """The path of a table with the indices and names of ``path``."""
    return ".".join(path.split(".")[: place.count(".") + 1])


def _means(path: str, wanted: str) -> bool:
    """Whether ``wanted`` is ``path`` or a table that contains it, with any names and indices."""
    parts, given = path.split("."), wanted.split(".")
    return len(given) <= len(parts) and all(
        part in (have, "NAME", "N") or (have.isdecimal() and part == "N")
        for part, have in zip(parts, given, strict=False)
    )


def _walk(
    schema: Mapping[str, Any], defs: Mapping[str, Any], path: str
) -> Iterator[KeyDescription]:
    required = schema.get("required", ())
    for name, entry in schema.get("properties", {}).items():
        where = join(path, name)
        resolved, inner = _inner(entry, defs, where)
        if inner:
            yield from inner
            continue
        default = None if name in required else json.dumps(entry.get("default"), ensure_ascii=False)
        description = entry.get("description") or resolved.get("description", "")
        yield KeyDescription(where, _type(entry, defs), default, description)


def _inner(
    entry: Mapping[str, Any], defs: Mapping[str, Any], where: str
) -> tuple[Mapping[str, Any], list[KeyDescription]]:
    """The keys inside a table, a table of tables or a list of tables."""
    for option in (entry, *entry.get("anyOf", ())):
        schema = _deref(option, defs)
        if "properties" in schema:
            return schema, list(_walk(schema, defs, where))
        named = schema.get("additionalProperties") or next(
            iter(schema.get("patternProperties", {}).values()), None
        )
        for below, part in ((named, "NAME"), (schema.get("items"), "N")):
            if isinstance(below, Mapping) and "properties" in _deref(below, defs):
                return schema, list(_walk(_deref(below, defs), defs, f"{where}.{part}"))
    return _deref(entry, defs), []


def _deref(entry: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = entry.get("$ref")
    return defs[reference.rpartition("/")[2]] if reference else entry


def _type(entry: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    entry = _deref(entry, defs)
    if "anyOf" in entry:
        return " or ".join(_type(option, defs) for option in entry["anyOf"])
    if "enum" in entry or "const" in entry:
        values = entry.get("enum", [entry.get("const")])
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in values)
    name = {"null": "nothing", "object": "table", "number": "float"}.get(
        entry.get("type", "any"), entry.get("type", "any")
    )
    if name == "array":
        items = entry.get("items")
        return f"list of {_type(items, defs)}" if isinstance(items, Mapping) else "list"
    bounds = [f"{sign} {entry[key]}" for key, sign in _BOUNDS.items() if key in entry]
    return f"{name} {', '.join(bounds)}" if bounds else str(name)
