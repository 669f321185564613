"""``python -m bench.campaign [--seed N] [--seconds S] [--keep]``: one run under faults, for instance one that found
something; ``--keep`` adds it to the campaigns that are recorded under ``bench/results/chaos``.

Prints each fault, each violation and the seconds of recovery; exit code 1 if there was a violation. The same seed
draws the same faults; the moments at which they strike are the machine's.
"""

from __future__ import annotations

import argparse
import json
import sys

from bench.campaign.campaign import LINK_FAULTS_IN_TURN, campaign
from bench.campaign.kept import recorded


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults and of the run")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults are made")
    parser.add_argument(
        "--links", type=int, default=LINK_FAULTS_IN_TURN, help="faults of links between two others"
    )
    parser.add_argument("--keep", action="store_true", help="record it")
    arguments = parser.parse_args()
    given = arguments.seconds, arguments.seed, arguments.seconds, arguments.links
    if arguments.keep:
        record = recorded(arguments.seed, lambda: campaign(*given))
    else:
        record = campaign(*given)
    print(json.dumps(record.figures(), indent=1))
    return 1 if record.troubles else 0


if __name__ == "__main__":
    sys.exit(main())
