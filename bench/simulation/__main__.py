"""``python -m bench.simulation SEED [STEPS]``: repeat the run of a seed, with the logs of all services."""

from __future__ import annotations

import sys

from bench.simulation.world import STEPS, paces_of, simulate


def main() -> int:
    """Entry point; 1 if an invariant did not hold."""
    seed, steps = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else STEPS
    run = simulate(seed, steps, quiet=False, paces=paces_of(seed))
    print(
        f"seed {seed}: {run.updates} updates in {run.virtual_s:.1f} virtual s, {run.events} events"
    )
    print(", ".join(f"{count} {kind}" for kind, count in run.faults.most_common()))
    print(f"digest {run.digest}; {run.violation or 'all invariants held'}")
    return int(run.violation is not None)


if __name__ == "__main__":
    sys.exit(main())
