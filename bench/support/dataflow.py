"""``python -m bench.support.dataflow FILE CONFIG``: the dataflow as `astraflow run` starts it.

With ASTRAFLOW_BENCH_PROFILE=PATH in the environment it runs under cProfile and leaves its statistics there.
"""

from __future__ import annotations

import cProfile
import json
import os
import sys
import threading
import time
from pathlib import Path

from astraflow_core.config.models import RunConfig
from astraflow_runtime.dataflow.main import serve
from bench.support.processes import TOKEN, announce


def main() -> int:
    """Serve until SIGTERM."""
    file, config = Path(sys.argv[1]), RunConfig.model_validate_json(sys.argv[2])
    directory = file.parent / "run"
    threading.Thread(target=pass_on, args=(directory / "dataflow.json", file), daemon=True).start()
    profile = os.environ.get("ASTRAFLOW_BENCH_PROFILE")
    if not profile:
        return serve(config, directory, TOKEN)
    profiler = cProfile.Profile(time.process_time)
    try:
        return profiler.runcall(serve, config, directory, TOKEN)
    finally:
        profiler.dump_stats(profile)


def pass_on(source: Path, file: Path) -> None:
    """Announce the URL of the dataflow once the dataflow has written it."""
    while not source.exists():
        time.sleep(0.01)
    announce(file, json.loads(source.read_text())["url"])


if __name__ == "__main__":
    sys.exit(main())
