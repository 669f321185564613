"""Makes ``problems.jsonl``, sums of two digits whose answers are fractions in LaTeX: ``python problems.py [COUNT]``."""

from __future__ import annotations

import itertools
import json
import random
import sys


def problems(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Distinct problems, the same for the same seed."""
    all_of_them = [
        {
            "question": f"{a}{sign}{b}=",
            "answer": rf"\frac{{{2 * (a + b if sign == '+' else a - b)}}}{{2}}",
        }
        for a, b, sign in itertools.product(range(10), range(10), "+-")
        if 0 <= (a + b if sign == "+" else a - b) <= 9
    ]
    return random.Random(seed).sample(all_of_them, count)


if __name__ == "__main__":
    for problem in problems(int(sys.argv[1]) if len(sys.argv) > 1 else 110):
        sys.stdout.write(json.dumps(problem) + "\n")
