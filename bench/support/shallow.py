"""A model with the first layers of another."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

from astraflow_wire.model_files.tensor_file import lay_out, mapped, read_specs

WEIGHTS, CONFIG = "model.safetensors", "config.json"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")


def shallow(model: Path, folder: Path, layers: int) -> Path:
    """Write into ``folder``, which must not exist, the model in the folder ``model`` with its first ``layers`` only; return
    ``folder``. Tokenizer, template and the other weights are the same."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns(WEIGHTS))
    config = json.loads((model / CONFIG).read_text(encoding="utf-8"))
    config["num_hidden_layers"] = min(layers, config["num_hidden_layers"])
    (folder / CONFIG).write_text(json.dumps(config), encoding="utf-8")
    with mapped(model / WEIGHTS) as file, (folder / WEIGHTS).open("wb") as output:
        kept = {spec.name: spec for spec in read_specs(file) if _layer(spec.name) < layers}
        header, specs = lay_out((spec.name, spec.dtype, spec.shape) for spec in kept.values())
        output.write(header)
        for spec in specs:
            output.write(file[kept[spec.name].start : kept[spec.name].end])
    return folder


def _layer(tensor: str) -> int:
    """The layer that a tensor belongs to; -1 for those of the whole model."""
    found = _LAYER.match(tensor)
    return -1 if found is None else int(found[1])
