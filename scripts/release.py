#!/usr/bin/env python3
"""Build a release: all distributions, built reproducibly and tested, in dist/VERSION with its changelog, SBOM and sums.

Nothing is published, and the tree stays as it is: dist/VERSION/release.patch has what the release changes in it, to be
committed and tagged before the files go to an index.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from installers import ROOT, exit_with
from releasing.making import Release

TRIALS: dict[str, tuple[str, Callable[[Release], str]]] = {
    "install": ("install all of it together, and write the SBOM", Release.install),
    "quickstart": ("train with it", Release.train),
    "pythons": ("newer Pythons", Release.pythons),
    "oldest": ("the oldest dependencies that are allowed", Release.oldest),
    "upgrade": ("a run of the release before", Release.upgrade),
}
"""What ``--without`` may leave out."""


def make(release: Release, without: list[str], key: str | None) -> None:
    """Carry out the steps; the first that fails ends the release, and dist/ stays as it was."""
    step("check the tree and the version", release.check)
    step("copy the commit, with the version and its changelog", release.copy)
    step("build twice, and look at the metadata", release.build)
    for name, (title, trial) in TRIALS.items():
        if name in without:
            print(f"== {title}: left out, as --without {name} says", flush=True)
        else:
            step(title, lambda trial=trial: trial(release))  # type: ignore[misc]
    step("sums", lambda: release.finish(key))


def step(title: str, action: Callable[[], str | None]) -> None:
    """Print the title of a step, run it, and print its result with the seconds that it took."""
    print(f"== {title}", flush=True)
    began = time.monotonic()
    said = action()
    print(f"   {f'{said}, ' if said else ''}{time.monotonic() - began:.0f} s", flush=True)


def next_steps(release: Release) -> str:
    """What is left to do, by a person."""
    if release.again:
        return "compare SHA256SUMS with the one that was published"
    place = release.place.relative_to(release.root)
    return (
        f"next: git apply {place}/release.patch; python3 scripts/dev.py docs; git add --all; "
        f'git commit -m "build: release {release.version}"; git tag v{release.version}; then upload {place}/*.whl and *.tar.gz'
    )


def main(argv: list[str]) -> int:
    """Parse the command line and release; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/dev.py release", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument(
        "version", metavar="VERSION", help="as in PEP 440, higher than the last one"
    )
    parser.add_argument(
        "--again", action="store_true", help="build the files of a released version from its commit"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="DISTRIBUTION",
        help="release this one and what it needs of ours; may be repeated (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        choices=TRIALS,
        help="leave a trial out; may be repeated",
    )
    parser.add_argument("--key", help="sign SHA256SUMS with this key of gpg")
    arguments = parser.parse_args(argv)
    if "install" in arguments.without and "quickstart" not in arguments.without:
        arguments.without.append("quickstart")
    with tempfile.TemporaryDirectory(prefix="astraflow-release-") as work:
        release = Release(
            ROOT, arguments.version, arguments.again, tuple(arguments.only), Path(work).resolve()
        )
        make(release, arguments.without, arguments.key)
    print(next_steps(release))
    return 0


if __name__ == "__main__":
    exit_with(main, "interrupted; dist/ is as it was")
