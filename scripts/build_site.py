#!/usr/bin/env python3
"""Build the pages as a site in dist/site: navigation, search, light and dark themes, no resources of other hosts.

A warning of Sphinx, a dead link and a resource of another host fail the build. `--serve` then serves the site.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import own_tools
from installers import ROOT, Failure, exit_with, show
from website import checking, staging

TOOLS = ROOT / "scripts" / "website" / "requirements.txt"
SITE = ROOT / "dist" / "site"
DEADLINE_S = 1800.0


def build(target: Path, root: Path = ROOT) -> int:
    """Build the site of a tree into a folder, which is replaced; returns the number of pages."""
    with tempfile.TemporaryDirectory(prefix="astraflow-site-") as work:
        pages, made = Path(work).resolve() / "pages", Path(work).resolve() / "site"
        pages.mkdir()
        count = len(staging.stage(pages, root))
        command = [
            str(own_tools.interpreter(TOOLS)),
            "-m",
            "sphinx",
            "-b",
            "html",
            "-W",
            "--keep-going",
        ]
        command += ["-q", "-j", "2", "-d", str(Path(work) / "doctrees"), str(pages), str(made)]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failure(f"Sphinx took longer than {DEADLINE_S:.0f} s") from error
        if done.returncode:
            raise Failure(
                "Sphinx refuses the pages:\n" + done.stderr.replace(f"{pages}/", "").strip()
            )
        if wrong := checking.problems(made):
            raise Failure("the site is incomplete:\n  " + "\n  ".join(wrong))
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, target)
    return count


def serve(folder: Path, port: int) -> None:
    """Show the site to this machine until Ctrl-C."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/ until Ctrl-C", flush=True)
        server.serve_forever()


def main(argv: list[str]) -> int:
    """Build, and serve if asked; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/dev.py site", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--serve", action="store_true", help="then show it on this machine")
    parser.add_argument("--port", type=int, default=8000, help="of --serve; 0 takes a free one")
    arguments = parser.parse_args(argv)
    began = time.monotonic()
    count = build(SITE)
    print(f"{count} pages in {show(SITE)}, {time.monotonic() - began:.0f} s", flush=True)
    if arguments.serve:
        serve(SITE, arguments.port)
    return 0


if __name__ == "__main__":
    exit_with(main)
