"""Commands of plugins beside those of the runtime: listed without an import, found by one word or two, and errors that
name the plugin."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow_runtime.cli import main

COMMANDS = """
from astraflow_core import Command

@hookimpl
def astraflow_commands():
    return [
        Command("hello", "greet somebody", "inspect a run", "hello_command:add_arguments"),
        Command("raas greet", "greet a RaaS", "manners", "hello_command:add_arguments"),
    ]
"""
MODULE = """
def add_arguments(parser):
    parser.add_argument("name")
    parser.set_defaults(command=run)

def run(arguments):
    print(f"hello {arguments.name}")
    return 7
"""


@pytest.fixture
def hello(site: Any, manifest: str) -> None:
    site.add("hello", manifest + COMMANDS, modules={"hello_command": MODULE})


def test_help_lists_them_in_their_groups_and_imports_none(
    hello: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.split("\n\n")
    groups = {part.partition(":\n")[0].strip(): part for part in shown if ":\n  " in part}
    assert list(groups)[-1] == "manners" and "raas greet" in groups["manners"]
    assert "greet somebody" in groups["inspect a run"]
    assert "hello_command" not in sys.modules


@pytest.mark.parametrize(
    "words", [["hello"], ["hello/hello"], ["raas", "greet"], ["hello/raas", "greet"]]
)
def test_a_name_of_one_word_or_two_is_called(
    hello: None, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "you"]) == 7
    assert capsys.readouterr().out == "hello you\n"
    assert main([*words, "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: astraflow ")


def test_a_file_of_the_other_command_is_no_word_of_it(
    hello: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["raas", "run.toml"]) == 2
    assert "astraflow raas: error: the following arguments are required" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import nothing_of_this_name", "cannot import 'hello_command'"),
        ("def other(parser): ...", "has no attribute 'add_arguments'"),
        ("add_arguments = 3", "is an object of type int; expected a function"),
        ("def add_arguments(parser): ...", "it must call parser.set_defaults(command=…)"),
    ],
)
def test_a_command_that_cannot_run_names_its_plugin(
    site: Any, manifest: str, module: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.add("hello", manifest + COMMANDS, modules={"hello_command": module})
    assert main(["hello"]) == 2
    err = capsys.readouterr().err
    who = "astraflow: command 'hello' of plugin 'hello' (fake-hello 1.0) cannot be used: "
    assert err.startswith(who) and said in err


def test_a_command_that_is_not_there_is_reported_with_what_provides_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASTRAFLOW_DISABLE_PLUGINS", "raas_check")
    assert main(["raas", "check", "-", "run.toml"]) == 2
    said = "command 'raas check': plugin 'raas_check' (astraflow-contrib-raas-check"
    assert said in capsys.readouterr().err


def test_a_command_of_the_runtime_imports_no_plugin_that_a_run_disables(
    site: Any, run_file: Path, manifest: str
) -> None:
    site.add("hidden", "from pathlib import Path\nPath(__file__).with_name('seen').touch()\n")
    run_file.write_text(run_file.read_text() + '[plugins]\ndisable = ["hidden"]\n')
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "from astraflow_runtime.cli import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, "-c", program, str(site.folder), "config", "show", str(run_file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert not (site.folder / "seen").exists()


def test_the_list_of_plugins_has_them(hello: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins"]) == 0
    assert "greet somebody" in capsys.readouterr().out.partition("\ncommands\n")[2]
    assert main(["plugins", "--json"]) == 0
    plugins = {plugin["name"]: plugin for plugin in json.loads(capsys.readouterr().out)}
    assert [c["name"] for c in plugins["hello"]["commands"]] == ["hello", "raas greet"]
    assert main(["plugins", "why", "raas greet"]) == 0
    assert "`astraflow hello` can be called" in capsys.readouterr().out
