"""``python -m bench.on_gpu [--quick] --out FILE``: measure what one GPU does, and write it as JSON.

A measurement that fails is reported, and the others are still made. ``make gpu`` calls this and puts the figures into
its report.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from bench.on_gpu import sampling, training, weights

MEASURED = {"training": training.measure, "weights": weights.measure, "sampling": sampling.measure}
DEVICE, ROUNDS, QUICK_ROUNDS = "cuda:0", 5, 2


def main() -> int:
    """Entry point; 1 if something could not be measured, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.on_gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small models, few rounds")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="where to write the figures"
    )
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} finds no CUDA device; nothing was measured", file=sys.stderr
        )
        return 2
    found: dict[str, Any] = {**machine(), "failed": {}}
    for name, measure in MEASURED.items():
        print(f"{name} …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="astraflow-bench-") as scratch:
            try:
                rounds = QUICK_ROUNDS if arguments.quick else ROUNDS
                fields = measure(Path(scratch), DEVICE, rounds, arguments.quick)
                found |= {field: round(value, 4) for field, value in fields.items()}
            except Exception as error:  # noqa: BLE001 - reported in the result, and by the exit code
                traceback.print_exc()
                found["failed"][name] = f"{type(error).__name__}: {error}"
        # Written after each measurement, so that a process that is stopped loses none of the earlier ones.
        arguments.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for field, value in found.items():
        print(f"  {field:28} {value}")
    return 1 if found["failed"] else 0


def machine() -> dict[str, Any]:
    """The card and what drives it."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "card": properties.name,
        "memory_gb": round(properties.total_memory / 1e9, 1),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    sys.exit(main())
