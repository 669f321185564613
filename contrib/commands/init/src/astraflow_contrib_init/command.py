"""``astraflow init``: asks, or takes flags, and writes a configuration."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from astraflow_core.errors import UserError
from astraflow_runtime.cli.helping import teach
from astraflow_runtime.cli.output import print_line

_STEPS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    from astraflow_contrib_init.choices import DEFAULT_MODEL, RECIPES

    parser.description = (
        "Writes a commented configuration. On a terminal it asks for the values that no option gives; elsewhere --recipe "
        "is required and the rest has defaults. It starts nothing and overwrites nothing."
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        default="run.toml",
        help="file to write; default: run.toml",
    )
    parser.add_argument(
        "--recipe",
        choices=list(RECIPES),
        help="; ".join(f"{name}: {what}" for name, what in RECIPES.items()),
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help=f"a Hugging Face folder or a reference; default: {DEFAULT_MODEL}",
    )
    parser.add_argument(
        "--data",
        metavar="PATH",
        type=Path,
        help="your prompts: .jsonl, .csv, .parquet or a folder; default: generated examples",
    )
    parser.add_argument(
        "--reward",
        metavar="NAME",
        help="an installed reward, or MODULE:NAME of your own; default: that of the recipe",
    )
    parser.add_argument(
        "--gpus", metavar="N", type=int, help="GPUs of this host for the run; default: 0, the CPU"
    )
    parser.add_argument("--name", metavar="NAME", help="name of the run; default: that of the file")
    parser.add_argument(
        "--steps", metavar="N", type=int, default=_STEPS, help=f"updates; default: {_STEPS}"
    )
    parser.add_argument("--defaults", action="store_true", help="ask nothing: use the defaults")
    parser.set_defaults(command=run)
    teach(
        parser,
        "your-run.md",
        "init",
        "init math.toml --recipe math --data problems.jsonl --reward exact --gpus 2",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and say what to do next."""
    from astraflow_contrib_init.choices import Choices, check_reward
    from astraflow_contrib_init.configuration import configuration

    file = Path(arguments.file)
    if file.suffix != ".toml":
        raise UserError(f"{file}: expected a name that ends in .toml")
    refuse_existing([file])
    if arguments.reward is not None:
        check_reward(arguments.reward)
    recipe, model, data, reward, gpus = _answers(arguments)
    name = arguments.name or file.stem
    choices = Choices(recipe, name, model, data, gpus, arguments.steps, reward)
    files = configuration(choices, file)
    refuse_existing(list(files))
    for path, text in files.items():
        write(path, text)
        print_line(f"wrote {path}")
    print_line("next:")
    if gpus:
        print_line("  astraflow env create vllm --plugin vllm")
    print_line(f"  astraflow doctor {file}")
    print_line(f"  astraflow run {file}")
    return 0


def _answers(arguments: argparse.Namespace) -> tuple[str, str, Path | None, str | None, int]:
    """Recipe, model, data, reward and GPUs: as given, as asked, or the defaults."""
    from astraflow_contrib_init import choices

    asking = sys.stdin.isatty() and sys.stdout.isatty() and not arguments.defaults
    recipe: str | None = arguments.recipe
    if recipe is None and not asking:
        names = ", ".join(choices.RECIPES)
        raise UserError(
            f"--recipe is missing, and there is no terminal to ask on; give one of: {names}"
        )
    try:
        if recipe is None:
            recipe = choices.ask_recipe(input)
        model, data, gpus = arguments.model, arguments.data, arguments.gpus
        reward: str | None = arguments.reward
        if model is None:
            model = choices.ask_model(input) if asking else choices.DEFAULT_MODEL
        if data is None and asking:
            data = choices.ask_data(input, recipe)
        if reward is None and asking:
            reward = choices.ask_reward(input, recipe)
        if gpus is None:
            gpus = choices.ask_gpus(input) if asking else 0
    except EOFError:
        raise UserError(
            "the input ended before all questions were answered; nothing was written"
        ) from None
    return recipe, model, data, reward, gpus


def refuse_existing(paths: list[Path]) -> None:
    """:class:`UserError` if there is a file already."""
    if existing := [str(path) for path in paths if path.exists()]:
        raise UserError(f"{', '.join(existing)} exists; remove it, or give another FILE or folder")


def write(path: Path, text: str) -> None:
    """Write a file that is not there yet; :class:`UserError` if it cannot be."""
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no folder {path.parent}; create it first") from None
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}") from error
