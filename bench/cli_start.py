"""Starting the command line: CPU seconds of `astraflow plugins` and `--help`, heavy modules imported."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys

from bench.support.timing import interleaved, ratio, spread

HEAVY = (
    "accelerate", "fastapi", "httpx", "jax", "matplotlib", "megatron", "numpy", "pydantic", "ray",
    "sglang", "starlette", "torch", "transformers", "uvicorn", "vllm", "zmq",
)  # fmt: skip
"""Backends, and libraries that a service needs but a list of plugins does not."""

MODULES = """
import atexit, json, sys
atexit.register(lambda: print("\\n" + json.dumps(sorted({name.partition(".")[0] for name in sys.modules}))))
from importlib.metadata import entry_points
(script,) = entry_points(group="console_scripts", name="astraflow")
sys.argv = ["astraflow", *sys.argv[1:]]
sys.exit(script.load()())
"""


def measure(quick: bool) -> dict[str, float]:
    """The slower of the two commands; a bare interpreter beside them."""
    pairs = 5 if quick else 15
    plugins, help_, bare = interleaved(
        pairs,
        lambda: cpu_of_child("-m", "astraflow_runtime", "plugins"),
        lambda: cpu_of_child("-m", "astraflow_runtime", "--help"),
        lambda: cpu_of_child("-c", "pass"),
    )
    loaded = modules_of("plugins") | modules_of("--help")
    return {
        "cpu_s": max(statistics.median(plugins), statistics.median(help_)),
        "heavy_modules": len(loaded & set(HEAVY)),
        "plugins_cpu_s": statistics.median(plugins),
        "help_cpu_s": statistics.median(help_),
        "bare_python_cpu_s": statistics.median(bare),
        "over_bare_python": ratio(plugins, bare),
        "spread": spread(plugins, bare),
        "modules": len(loaded),
    }


def cpu_of_child(*arguments: str) -> float:
    """CPU seconds of one interpreter, from its start to its end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def modules_of(command: str) -> set[str]:
    """Top-level modules that `astraflow COMMAND` has loaded when it ends."""
    done = subprocess.run(
        [sys.executable, "-c", MODULES, command],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return set(json.loads(done.stdout.rstrip().rpartition("\n")[2]))
