"""Run once in a new environment: ``python -m astraflow_contrib_textworld.finish``.

TextWorld imports jericho, which is built from source and asks for spaCy (126 MB), which nothing of ours needs. So both are
installed without their dependencies; the extra ``runtime-lean`` has those that are imported.
"""

from __future__ import annotations

import subprocess
import sys

TEXTWORLD, JERICHO = "textworld==1.7.0", "jericho==3.3.1"
DEADLINE_S = 1800.0
ADVICE = (
    f"{JERICHO}, which TextWorld imports, has no wheel and could not be built from source. Install a C compiler and make "
    "(Debian and Ubuntu: apt-get install gcc make; macOS: xcode-select --install) and run the command again"
)


def main() -> int | str:
    """The entry point: the exit code, or what went wrong. Modules that cannot be imported are no installation."""
    pip = ("-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-deps")
    code = _python(*pip, TEXTWORLD)
    if code:
        return code
    if _python(*pip, JERICHO):
        return ADVICE
    return _python("-c", "import textworld")


def _python(*arguments: str) -> int:
    """The exit code of this interpreter."""
    command = (sys.executable, *arguments)
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, timeout=DEADLINE_S, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
