"""A task file of SkyPilot that runs an artifact of ``astraflow pack`` on machines that have nothing but Python.

The first node has the dataflow and the trainers; RaaS are on the others, or on the same node if there is only one. Nodes share no
folder: each process is started by its own command with the run's token, which SkyPilot gives as a secret.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from astraflow_core.config.load import LoadedConfig
from astraflow_core.errors import UserError
from astraflow_core.protocols.launcher import ProcessSpec
from astraflow_runtime.launch.planning.plan import plan

PORT = 19100
_DIRECTORY = Path("/run-directory")
"""In the place of the folder of each node, which only its shell knows."""
_WORDS = {
    sys.executable: '"$python"',
    str(_DIRECTORY / "config.toml"): '"$config"',
    str(_DIRECTORY): '"$HOME/astraflow/run"',
}


@dataclass(frozen=True, slots=True)
class SkyRequest:
    """What is asked of SkyPilot: ``artifact`` on this machine, ``nodes``, and the ``accelerators`` of each, such as ``H100:8``."""

    artifact: Path
    nodes: int = 1
    accelerators: str = ""


def skypilot_task(
    loaded: LoadedConfig, file: str, overrides: Sequence[str], request: SkyRequest
) -> str:
    """The task file, in YAML. Raises :class:`UserError` for what such a task cannot be."""
    if request.nodes < 1:
        raise UserError(f"--nodes {request.nodes}: expected at least 1")
    if request.nodes - 1 > loaded.config.raas.replicas:
        raise UserError(
            f"--nodes {request.nodes}: {request.nodes - 1} nodes for RaaS, and [raas] replicas is "
            f"{loaded.config.raas.replicas}: raise it, or take fewer nodes"
        )
    python = "python{}.{}".format(*sys.version_info[:2])
    specs = plan(loaded.config, _DIRECTORY, "", 0)
    placed = [_of_node(specs, node, request.nodes) for node in range(request.nodes)]
    needs = getattr(loaded.components["launcher"][1], "needs", None)
    shares = needs is not None and any(needs(spec.name, spec.role).gpus for spec in specs)
    words = " ".join(shlex.quote(w) for each in overrides for w in ("--set", each))
    cases = "\n".join(
        f"      {node})\n" + "\n".join(f"        {line}" for line in _lines(here, words, needs if shares else None)) + "\n        ;;"
        for node, here in enumerate(placed)
    )  # fmt: skip
    return f"""\
# sky launch THIS_FILE --secret ASTRAFLOW_TOKEN, with $(openssl rand -hex 32) in that variable.
name: {json.dumps(f"astraflow-{loaded.config.run.name}")}
num_nodes: {request.nodes}
resources:
{_resources(placed, needs, request.accelerators)}
file_mounts:
  ~/astraflow/run.afpack: {json.dumps(str(request.artifact.absolute()))}
secrets:
  ASTRAFLOW_TOKEN: null
setup: |
  {python} ~/astraflow/run.afpack --into ~/astraflow --role services --offline > ~/astraflow/installed.json
run: |
  set -eu
  installed() {{ {python} -c "import json; d = json.load(open('$HOME/astraflow/installed.json')); print(d$1)"; }}
  python=$(installed "['pythons']['services']")
  cd "$(installed "['run']")"
  config={shlex.quote(PurePath(file).name)}
  head=$(echo "$SKYPILOT_NODE_IPS" | head -n 1)
  export ASTRAFLOW_DATAFLOW="http://$head:{PORT}"
  export ASTRAFLOW_HOST_ADDRESS=$(echo "$SKYPILOT_NODE_IPS" | sed -n "$((SKYPILOT_NODE_RANK + 1))p")
  mkdir -p "$HOME/astraflow/run"
  case "$SKYPILOT_NODE_RANK" in
{cases}
  esac
  wait "$first"
  wait
"""


def _of_node(specs: Sequence[ProcessSpec], node: int, nodes: int) -> list[ProcessSpec]:
    raas = [spec for spec in specs if spec.role == "raas"]
    own = raas if nodes == 1 else raas[node - 1 :: nodes - 1]
    if node:
        return own
    first = [spec for spec in specs if spec.role != "raas"]
    return first + (raas if nodes == 1 else [])


def _lines(specs: Sequence[ProcessSpec], overrides: str, needs: Any) -> list[str]:
    """The commands of a node, whose first process ends when the run is over; with ``needs`` each sees its own GPUs only."""
    lines: list[str] = []
    used = 0
    for spec in specs:
        words = [_WORDS.get(word, shlex.quote(word)) for word in spec.argv if word != "--stay"]
        if overrides:
            words.append(overrides)
        if spec.role == "dataflow":
            words.append(f"--set dataflow.port={PORT}")
        if needs:
            more = used + needs(spec.name, spec.role).gpus
            words.insert(0, f"CUDA_VISIBLE_DEVICES={','.join(map(str, range(used, more)))}")
            used = more
        lines.append(" ".join(words) + (" &" if lines else " & first=$!"))
    return lines


def _resources(placed: Sequence[Sequence[ProcessSpec]], needs: Any, accelerators: str) -> str:
    """What each node must have: nodes of a task are alike, so as much as the fullest needs."""
    found: dict[str, Any] = {"accelerators": accelerators} if accelerators else {}
    wanted = [[needs(spec.name, spec.role) for spec in here] for here in placed] if needs else []
    for key, of in (("cpus", "cpus"), ("memory", "memory_gb")):
        most = max((sum(getattr(n, of) or 0 for n in here) for here in wanted), default=0)
        if most:
            found[key] = f"{most:g}+"
    gpus = max((sum(n.gpus for n in here) for here in wanted), default=0)
    if gpus and not accelerators:
        raise UserError(
            f"[launcher] needs {gpus} GPUs on a node: say which with --accelerators, such as H100:{gpus}"
        )
    if wanted and all(n.spot for here in wanted for n in here):
        found["use_spot"] = True
    if not found:
        return "  cpus: 2+"
    return "\n".join(f"  {key}: {json.dumps(value)}" for key, value in found.items())
