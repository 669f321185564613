"""A configuration in the making."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astraflow_contrib_init.importing.settings import Settings
from astraflow_contrib_init.text import comment, table

_NOTES = {
    "run": "How long, and how asynchronous.",
    "prompts": "What the policies are asked.",
    "workflow": "How an episode is played.",
    "reward": "What an episode earns.",
    "sampling": "How policies sample.",
    "eval": "Evaluation on prompts that are not trained on.",
    "checkpoint": "What a trainer continues from after a failure.",
}
_FIRST = ("run", "prompts", "workflow", "reward", "sampling", "policies", "eval", "checkpoint")


@dataclass
class Draft:
    """Tables of a configuration, by name; ``todo``: what its user has to complete."""

    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    todo: list[str] = field(default_factory=list)

    def put(self, path: str, value: Any, source: str = "") -> None:
        """Set the key ``path``, whose last part is its name in a table; ``source``: where its value comes from."""
        name, _, key = path.rpartition(".")
        self.tables.setdefault(name, {})[key] = (
            (value, source) if source not in ("", key) else value
        )

    def has(self, path: str) -> bool:
        """Whether the key is set."""
        name, _, key = path.rpartition(".")
        return key in self.tables.get(name, {})

    def carry(self, settings: Settings, names: Mapping[str, str], prefix: str = "") -> None:
        """Put the settings of these names at the given paths."""
        for name, path in names.items():
            if f"{prefix}{name}" in settings:
                self.put(path, settings.take(f"{prefix}{name}"), name)

    def serve_adapters(self) -> None:
        """The engine of a policy that trains an adapter has to take it: vLLM gets its rank, others become a TODO."""
        for name in [name for name in self.tables if name.endswith(".trainer")]:
            rank = self._value(f"{name}.lora_rank")
            engine = f"{name.removesuffix('.trainer')}.engine"
            use = self._value(f"{engine}.use")
            if rank and use == "vllm":
                self.put(f"{engine}.lora_rank", rank, "lora_rank of the trainer")
            elif rank:
                keys = [key for key in self.tables[name] if key.startswith("lora_")]
                said = ", ".join(f"{key} = {self._value(f'{name}.{key}')}" for key in keys)
                self.todo.append(
                    f"to train an adapter, name an engine that takes some, such as vllm with lora_rank = {rank} ({use} loads whole "
                    f"versions only), and put {said} into [{name}]"
                )
                for key in keys:
                    del self.tables[name][key]

    def _value(self, path: str) -> Any:
        name, _, key = path.rpartition(".")
        value = self.tables.get(name, {}).get(key)
        return value[0] if isinstance(value, tuple) else value

    def variables(self) -> list[tuple[str, str]]:
        """Keys with a variable of a shell or of OmegaConf in their value."""
        found = []
        for name, keys in self.tables.items():
            for key, value in keys.items():
                content = value[0] if isinstance(value, tuple) else value
                if isinstance(content, str) and "$" in content:
                    found.append((f"{name}.{key}", content))
        return found

    def text(self) -> str:
        """All tables as TOML."""

        def place(name: str) -> int:
            head = name.split(".")[0]
            return _FIRST.index(head) if head in _FIRST else len(_FIRST)

        names = sorted(self.tables, key=place)
        return "\n".join(table(name, _NOTES.get(name, ""), self.tables[name]) for name in names)


@dataclass(frozen=True, slots=True)
class System:
    """How the configurations of another system are read. ``marks``: names of tables or keys of which it has one;
    ``notes``: how a name begins, or ends after a dot → why it is not carried over; ``page``: what the documents say of the system."""

    title: str
    marks: tuple[str, ...]
    read: Callable[[dict[str, Any]], tuple[Draft, Settings]]
    notes: Mapping[str, str]
    page: str

    def why_not(self, name: str) -> str:
        """Why the setting was not carried over."""
        fitting = [
            start for start in self.notes if name.startswith(start) or name.endswith(f".{start}")
        ]
        return self.notes[max(fitting, key=len)] if fitting else "no counterpart is known"


def model_reference(name: str) -> str:
    """A folder as it is, and ``OWNER/NAME`` as a model of the Hugging Face hub."""
    local = name.startswith(("/", "./", "../", "~", "$")) or os.path.isdir(name)
    return name if local or ":" in name or "/" not in name else f"hf:{name}"


def key_name(text: str) -> str:
    """``text`` as the name of a policy or of an evaluation set."""
    name = re.sub(r"[^a-z0-9_]", "_", text.lower())
    return name if name[:1].isalpha() else f"m_{name}"


def run_name(text: str) -> str:
    """``text`` as the name of a run."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "imported"


def head(system: System, files: list[Path], todo: list[str]) -> str:
    """The comment at the beginning."""
    lines = [
        f"Imported from {system.title}: {', '.join(file.name for file in files)}.",
        f"Read {system.page}.",
    ]
    lines += ["To do:", *(f"- {each}" for each in todo)] if todo else []
    return comment("\n".join(lines))
