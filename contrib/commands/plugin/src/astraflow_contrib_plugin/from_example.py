"""From an example plugin to the same plugin with another name, for ``plugin new --from-example``."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib import resources
from typing import Any

from astraflow_contrib_plugin.scaffolding import PluginNames, camel, files_of
from astraflow_core.errors import UserError

_LINK = re.compile(r"\[([^\]]+)\]\(\.\.[^)]*\)")
_PROVENANCE = re.compile(r"(This package is|The) (the )?example of")
_RUNS = {
    "data_policy": (
        (
            "# Here `accept`, `key`, `arrange` and others are called; `admit` only of those in [prompts] data.\n",
            "",
        ),
        ('[policies.solver]\ndata = [{ use = "sample_thing" }]\n\n', ""),
        ("digits = 2\n", 'digits = 2\ndata = [{ use = "sample_thing", revisit = 0.2 }]\n'),
    ),
    "environment": (
        (
            'use = "digits"\ndigits = 2\n',
            'use = "jsonl"\npath = "prompts.jsonl"\nanswer_key = ""\n',
        ),
    ),
    "transport": (
        (
            '{ use = "sample_thing" }',
            '{ use = "sample_thing", path = "/tmp/sample_thing-weights" }',
        ),
    ),
}
"""Kind → what must be replaced in the run of its template, so that it fits the example."""
_WORDS = '{"prompt": "Play.", "words": ["tree", "edge", "owl"]}\n{"prompt": "Play.", "words": ["rain", "apple"]}\n'
_MORE = {"environment": {"prompts.jsonl": _WORDS}}
"""Kind → files that its run needs."""


@cache
def examples() -> dict[str, Any]:
    """Kind → ``name`` of the example and its ``files``: path → text. Written by ``scripts/docs.py``."""
    text = resources.files("astraflow_contrib_plugin").joinpath("examples.json").read_text("utf-8")
    return dict(json.loads(text))


def files_of_example(names: PluginNames) -> dict[str, str]:
    """Path below the new folder → text; :class:`UserError` if there is no example of the kind."""
    example = examples().get(names.kind)
    if example is None:
        raise UserError(
            f"there is no example of the kind {names.kind!r}; leave out --from-example, or start from one of: "
            f"{', '.join(sorted(examples()))}"
        )
    template = files_of(names)
    kept = {
        path: text
        for path, text in template.items()
        if not path.startswith("tests/") and not path.endswith(("/component.py", "/sampled.py"))
    }
    own = {
        _renamed(path, example["name"], names): _renamed(text, example["name"], names)
        for path, text in example["files"].items()
    }
    own["README.md"] = _readme(own["README.md"], template["README.md"])
    if "run.toml" in kept:
        for old, new in _RUNS.get(names.kind, ()):
            old, new = names.replaced(old), names.replaced(new)
            assert old in kept["run.toml"]
            kept["run.toml"] = kept["run.toml"].replace(old, new)
    return kept | own | _MORE.get(names.kind, {})


def _renamed(text: str, old: str, names: PluginNames) -> str:
    """The name of an example, where it is one: a word such as ``folder`` has other meanings too."""
    dashed = old.replace("_", "-")
    text = text.replace(f"astraflow_plugin_{old}", names.module)
    text = text.replace(f"astraflow-plugin-{dashed}", f"astraflow-plugin-{names.dashed}")
    text = re.sub(rf"\b(Test)?{camel(old)}(?![a-z])", rf"\g<1>{camel(names.name)}", text)
    for word, new in ((old, names.component), (dashed, names.component)):
        text = re.sub(rf'(["`]){re.escape(word)}(["`])', rf"\g<1>{new}\g<2>", text)
    if "-" in dashed:  # a command line, or the name of a test
        text = re.sub(rf"\b{dashed}\b", names.dashed, text)
    return text


def _readme(example: str, template: str) -> str:
    """The text of the example between the title of the template and its last section; links into AstraFlow become text."""
    body = example.partition("\n\n")[2]
    body = _PROVENANCE.sub("From the example of", _LINK.sub(r"\1", body))
    title = template.partition("\n\n")[0]
    end = template[template.index("## Work on it") :]
    return f"{title}\n\n{body.rstrip()}\n\n{end}"
