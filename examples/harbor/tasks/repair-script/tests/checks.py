"""Writes the part of the checks that ``report.py`` passes."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

CASES = {
    "one two three\n": 3,
    "one\n\n\ntwo\n": 2,
    "a  b   c\n": 3,
    "": 0,
    "tab\tand\nline": 3,
}
passed = 0
with tempfile.TemporaryDirectory() as folder:
    for number, (text, words) in enumerate(CASES.items()):
        file = Path(folder) / f"{number}.txt"
        file.write_text(text)
        missing = str(Path(folder) / "missing.txt")
        for names, expected in (
            ([str(file)], [f"{words} {file}"]),
            ([missing, str(file)], [f"{missing}: not found", f"{words} {file}"]),
        ):
            ran = subprocess.run(
                [sys.executable, "report.py", *names], capture_output=True, text=True, check=False
            )
            passed += ran.returncode == 0 and ran.stdout.splitlines() == expected
whole = passed == 2 * len(CASES)
sys.stdout.write(
    json.dumps({"reward": 1.0 if whole else 0.5 * passed / (2 * len(CASES)), "passed": passed})
)
