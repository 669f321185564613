"""``astraflow pack FILE`` and ``astraflow unpack ARTIFACT``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line
from astraflow_runtime.cli.run import add_overrides

_PAGE = "clusters.md"


def add_pack(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``pack``."""
    parser.description = (
        "Writes one file with the config, its own modules and files, wheels of the AstraFlow packages that it names, and the "
        "versions of all others. Equal input gives equal bytes."
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="the run's TOML file; with --show or --containerfile, an artifact",
    )
    add_overrides(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="ARTIFACT",
        help="file to write; default: FILE with .afpack",
    )
    parser.add_argument(
        "--with-dependencies",
        action="store_true",
        help="include wheels of all other packages, for hosts without a network",
    )
    parser.add_argument(
        "--with-models",
        action="store_true",
        help="include model folders below the folder of the config",
    )
    parser.add_argument(
        "--show", action="store_true", help="print what an artifact holds, and write nothing"
    )
    parser.add_argument(
        "--containerfile",
        metavar="ROLE",
        help="print the recipe of an OCI image for a role of the artifact FILE, and write nothing",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run_pack)
    teach(
        parser,
        _PAGE,
        "pack run.toml --output run.afpack --with-dependencies",
        "pack --show run.afpack",
    )


def add_unpack(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of ``unpack``."""
    parser.description = (
        "Checks an artifact and creates an environment for each role, once for each digest."
    )
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT", help="written by astraflow pack")
    parser.add_argument(
        "--into", type=Path, metavar="FOLDER", help="where to keep it; default: the cache folder"
    )
    parser.add_argument(
        "--role", action="append", metavar="ROLE", help="only this role; may be repeated"
    )
    parser.add_argument(
        "--offline", action="store_true", help="fail instead of asking a package index"
    )
    parser.add_argument(
        "--most-gb",
        type=float,
        default=64.0,
        metavar="GB",
        help="largest size when unpacked; default: 64",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(command=run_unpack)
    teach(
        parser, _PAGE, "unpack run.afpack", "unpack run.afpack --into /opt/astraflow --role engine"
    )


def run_pack(arguments: argparse.Namespace) -> int:
    """Pack, or show an artifact."""
    file = Path(arguments.file)
    if arguments.show:
        return _show(file, arguments.json)
    if arguments.containerfile is not None:
        return _print_recipe(file, arguments.containerfile)
    from astraflow_contrib_pack.contents import contents_of
    from astraflow_contrib_pack.writing import write_artifact
    from astraflow_runtime.config.loading import load_config

    loaded = load_config(arguments.file, arguments.overrides)
    contents = contents_of(loaded, file, arguments.with_models)
    out = arguments.output or file.with_suffix(".afpack")
    digest = write_artifact(
        out, contents, file.name, arguments.overrides, arguments.with_dependencies
    )
    for note in contents.notes:
        print_line(f"astraflow: {note}", sys.stderr)
    if arguments.json:
        print_json(
            {
                "artifact": str(out),
                "digest": digest,
                "bytes": out.stat().st_size,
                "notes": contents.notes,
            }
        )
    else:
        print_line(f"{out}: {out.stat().st_size / 1e6:.1f} MB, digest {digest}")
    return 0


def _manifest_of(artifact: Path) -> tuple[dict[str, Any], str]:
    from astraflow_contrib_pack.installer import ArtifactError, read_manifest

    try:
        return read_manifest(artifact)
    except ArtifactError as error:
        raise UserError(str(error)) from error


def _print_recipe(artifact: Path, role: str) -> int:
    from astraflow_contrib_pack.recipes import containerfile

    manifest, digest = _manifest_of(artifact)
    print_line(containerfile(manifest, digest, str(artifact), role).rstrip("\n"))
    return 0


def _show(artifact: Path, as_json: bool) -> int:
    manifest, digest = _manifest_of(artifact)
    if as_json:
        print_json({"digest": digest, **manifest})
        return 0
    print_line(
        f"digest {digest}, Python {manifest['python']}, {'complete' if manifest['complete'] else 'needs an index'}"
    )
    for role, entry in manifest["roles"].items():
        names = ", ".join(f"{name} {version}" for name, version in entry["distributions"].items())
        print_line(f"{role}: {names}; {len(entry['requirements'])} other packages")
    for name, file in manifest["files"].items():
        print_line(f"{file['sha256'][:16]} {file['bytes']:>12} {name}")
    return 0


def run_unpack(arguments: argparse.Namespace) -> int:
    """Install an artifact."""
    from astraflow_contrib_pack.installer import ArtifactError, install
    from astraflow_core.config.environments import cache_folder

    into = arguments.into or cache_folder() / "packs"
    try:
        most = int(arguments.most_gb * 1e9)
        run, pythons = install(arguments.artifact, into, arguments.role, most, arguments.offline)
    except ArtifactError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{error.filename or into}: {error.strerror}") from error
    if arguments.json:
        print_json(
            {"run": str(run), "pythons": {role: str(python) for role, python in pythons.items()}}
        )
        return 0
    for role, python in pythons.items():
        print_line(f"{role}: {python}")
    print_line(f"the run: {run}")
    return 0
