"""``astraflow config import``: a configuration of another system becomes one of this."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_json, print_line

if TYPE_CHECKING:
    from astraflow_contrib_init.importing.draft import Draft, System
    from astraflow_contrib_init.importing.settings import Settings

_SHOWN = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Reads a configuration of the public AstraFlow (YAML), TRL (arguments of GRPOConfig as YAML or JSON), verl (YAML, or "
        "a script with overrides) or prime-rl (TOML), and writes one for `astraflow run`. It says what is left to do, and "
        "what was not carried over. Nothing of the other system is run or imported."
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=Path,
        help="its files; later ones over earlier ones",
    )
    parser.add_argument(
        "--from",
        dest="system",
        metavar="SYSTEM",
        help="astraflow, prime-rl, trl or verl; default: what the names fit",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("run.toml"),
        help="file to write; default: run.toml",
    )
    parser.add_argument("--json", action="store_true", help="print what was done as JSON")
    parser.set_defaults(command=run)
    teach(
        parser,
        "coming-from-verl.md",
        "config import run_grpo.sh --output grpo.toml",
        "config import experiment.yaml raas.yaml",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the file and report; 1 if it cannot be loaded yet."""
    from astraflow_contrib_init.command import refuse_existing, write
    from astraflow_contrib_init.importing.draft import head
    from astraflow_contrib_init.importing.reading import read_files
    from astraflow_contrib_init.importing.systems import SYSTEMS, system_of

    file: Path = arguments.output
    if file.suffix != ".toml":
        raise UserError(f"--output {file}: expected a name that ends in .toml")
    refuse_existing([file])
    if arguments.system is not None and arguments.system not in SYSTEMS:
        raise UserError(f"--from {arguments.system}: expected one of {', '.join(SYSTEMS)}")
    nested = read_files(arguments.files)
    system = SYSTEMS[arguments.system] if arguments.system else system_of(nested)
    draft, settings = read_settings(system, nested)
    draft.todo += [f"replace the variable in {key} = {value!r}" for key, value in draft.variables()]
    left = {name: (value, system.why_not(name)) for name, value in settings.left.items()}
    write(file, head(system, arguments.files, draft.todo) + "\n" + draft.text())
    problem = _problem(file)
    if arguments.json:
        print_json(
            {
                "system": system.title,
                "file": str(file),
                "carried": settings.carried,
                "todo": draft.todo,
                "not_carried": [
                    {"name": n, "value": v, "reason": why} for n, (v, why) in left.items()
                ],
                "unset": settings.unset,
                "problem": problem,
            }
        )
    else:
        _report(system, file, draft, settings, left, problem)
    return 1 if problem else 0


def read_settings(system: System, nested: dict[str, Any]) -> tuple[Draft, Settings]:
    """The draft, and what was read; :class:`UserError` if ``nested`` is not of the system."""
    try:
        draft, settings = system.read(nested)
        draft.serve_adapters()
        draft.text()
    except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise UserError(
            f"a setting has another form than one of {system.title} has: {error}; --from names another system"
        ) from error
    return draft, settings


def _problem(file: Path) -> str:
    """Why the configuration cannot be loaded; empty if it can."""
    from astraflow_runtime.config.loading import load_config

    try:
        load_config(file)
    except UserError as error:
        return str(error)
    return ""


def _report(
    system: System,
    file: Path,
    draft: Draft,
    settings: Settings,
    left: dict[str, tuple[Any, str]],
    problem: str,
) -> None:
    print_line(f"wrote {file}: {settings.carried} settings of {system.title}")
    if left:
        print_line("not carried over:")
        for name, (value, why) in left.items():
            print_line(f"  {name} = {_cut(str(value))}: {why}")
    if settings.unset:
        names = ", ".join(settings.unset)
        print_line(f"null, as if not written: {_cut(names)}")
    if draft.todo:
        print_line("to do:")
        for each in draft.todo:
            print_line(f"  {each}")
    if problem:
        print_line(f"it cannot be loaded yet: {problem}")
    else:
        print_line(f"next: astraflow doctor {file}; {system.page} explains the differences")


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
