"""``python -m bench [NAME] [--quick] [--json]``: run one benchmark, or all of them.

A benchmark is a module of this package with ``measure(quick: bool) -> dict[str, float]`` and a docstring
that states what is measured. With ``--json`` the last line printed is one JSON object. Without ``--quick``
the result is written to ``bench/results/NAME.json``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import platform
import sys
import time
from pathlib import Path

import bench
from astraflow_core.suggestions import did_you_mean

RESULTS = Path(__file__).parent / "results"


def names() -> list[str]:
    """The benchmarks that there are."""
    found = (module.name for module in pkgutil.iter_modules(bench.__path__) if not module.ispkg)
    return sorted(name for name in found if not name.startswith("_"))


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="which; default: all")
    parser.add_argument("--quick", action="store_true", help="a shorter run, not recorded")
    parser.add_argument("--json", action="store_true", help="print one JSON object last")
    arguments = parser.parse_args()
    if arguments.name not in (None, *names()):
        hint = did_you_mean(arguments.name, names()) or ";"
        parser.error(f"no benchmark {arguments.name!r}{hint} there are {', '.join(names())}")
    for name in [arguments.name] if arguments.name else names():
        module = importlib.import_module(f"bench.{name}")
        print(f"{name}: {(module.__doc__ or '').strip().splitlines()[0]}", file=sys.stderr)
        fields = module.measure(arguments.quick)
        result = {"benchmark": name, **fields}
        if not arguments.quick:
            RESULTS.mkdir(exist_ok=True)
            recorded = {
                **result,
                "date": time.strftime("%Y-%m-%d"),
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            }
            (RESULTS / f"{name}.json").write_text(json.dumps(recorded, indent=1) + "\n")
        if arguments.json:
            print(json.dumps(result))
        else:
            for field, value in fields.items():
                print(f"  {field:24} {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
