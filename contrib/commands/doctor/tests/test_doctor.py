"""``astraflow doctor`` finds what would prevent a run, and names the fix."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow_contrib_doctor import command, preflight
from astraflow_contrib_doctor.finding import Finding
from astraflow_runtime.cli import main
from astraflow_runtime.config.loading import load_config
from astraflow_runtime.raas.episodes.dry_process import BLOCKS, VARIABLE


def findings(
    capsys: pytest.CaptureFixture[str], code: int, *arguments: str
) -> dict[str, dict[str, str]]:
    assert main(["doctor", *arguments, "--static", "--json"]) == code
    return {finding["subject"]: finding for finding in json.loads(capsys.readouterr().out)}


def test_a_sound_run(sound: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = findings(capsys, 0, sound)
    assert {f["level"] for subject, f in found.items() if not subject.startswith("plugin ")} == {
        "ok"
    }
    for subject in ("python", "cores", "memory", sound, "policies.solver.model", "run.directory"):
        assert subject in found
    assert not Path(sound).with_name("runs").exists()


def test_plugins_alone_never_fail(
    site: Any, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.add("bad", "import nothing_of_this_name")
    site.add("heavy", manifest, metadata='Requires-Dist: huge-backend; extra == "runtime"\n')
    site.add("light", manifest, metadata='Requires-Dist: pluggy; extra == "runtime"\n')
    found = findings(capsys, 0)
    assert found["plugin bad"]["level"] == "warning"
    assert "pip uninstall fake-bad" in found["plugin bad"]["fix"]
    assert found["plugin heavy"]["fix"] == "pip install 'fake-heavy[runtime]'"
    assert "with pluggy 1" in found["plugin light"]["text"]


@pytest.mark.slow
def test_plugins_without_a_problem_are_one_line(
    site: Any, sound: str, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.add("bad", "import nothing_of_this_name")
    assert main(["doctor", sound, "--static", "--plugins"]) == 0
    whole = capsys.readouterr().out
    usable = whole.count("\nok      plugin ")
    assert usable > 2
    assert main(["doctor", sound, "--static"]) == 0
    said = capsys.readouterr().out
    assert f"ok      plugins: {usable} without a problem; --plugins lists them\n" in said
    assert "ok      plugin " not in said and "warning plugin bad: " in said
    assert f"ok      {sound}: the configuration is valid" in said
    assert main(["doctor"]) == 0
    assert f"plugins: {usable} without" in capsys.readouterr().out


def test_a_hook_with_a_wrong_name_leads_to_what_helps(
    site: Any, sound: str, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.add("torn", manifest + "@hookimpl\ndef astraflow_reward():\n    return []\n")
    found = findings(capsys, 2, sound, "--set", "reward.use=torn_reward")
    assert "did you mean 'astraflow_rewards'?" in found[sound]["text"]
    assert "`astraflow plugins why torn` for the remedy" in found[sound]["text"]
    assert "report it to its authors; if it is your own, fix" in found["plugin torn"]["fix"]


@pytest.mark.slow
def test_data_and_targets_that_are_not_there_are_found_before_a_process_starts(
    site: Any, sound: str, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = "@hookimpl\ndef astraflow_trainers():\n    return [Component('torn', 'toy_parts:Gone', 's')]\n"
    torn += "@hookimpl\ndef astraflow_rewards():\n    return [Component('torn', 'toy_parts:Lost', 's')]\n"
    site.add("torn", manifest + torn)
    found = findings(capsys, 2, sound, "--set", "reward.use=torn")
    assert "toy_parts:Lost" in found["reward"]["text"] and "prompts" not in found
    found = findings(capsys, 2, sound, "--set", "policies.solver.trainer.use=torn")
    problem = found["policies.solver.trainer"]
    assert "its manifest names 'toy_parts:Gone', and module 'toy_parts'" in problem["text"]
    assert "update fake-torn" in problem["fix"]
    assert main(["run", sound, "--set", "policies.solver.trainer.use=torn"]) == 2
    assert "toy_parts:Gone" in capsys.readouterr().err
    found = findings(
        capsys, 2, sound, "--set", "prompts.use=jsonl", "--set", "prompts.path=gone.jsonl"
    )
    assert f"cannot read {Path.cwd()}/gone.jsonl" in found["prompts"]["text"]


def test_every_problem_has_its_fix(
    sound: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        blocker = Path(sound).parent / "file"
        blocker.touch()
        overrides = [
            f"dataflow.port={port}",
            f"run.directory={blocker}/runs",
            "policies.solver.model=nowhere",
            "policies.solver.trainer.python=/no/venv/bin/python",
        ]
        arguments = [part for override in overrides for part in ("--set", override)]
        found = findings(capsys, 2, sound, *arguments)
    problems = {subject: f for subject, f in found.items() if f["level"] == "problem"}
    assert set(problems) == {
        "dataflow.port",
        "run.directory",
        "policies.solver.model",
        "policies.solver.trainer.python",
    }
    assert all(finding["fix"] for finding in problems.values())
    assert "python -m venv /no/venv" in problems["policies.solver.trainer.python"]["fix"]
    assert str(port) in problems["dataflow.port"]["text"]


@pytest.mark.parametrize(
    ("own", "fix"),
    [
        (
            "ASTRAFLOW_ENVIRONMENT = 'm:environment'\n",
            "astraflow env create heavy --plugin heavy, and policies.solver.engine.python = 'env:heavy'",
        ),
        ("", "set it to an interpreter that has astraflow-core and fake-heavy"),
    ],
)
def test_an_interpreter_that_is_not_there_is_made_as_its_backend_needs_it(
    site: Any, sound: str, manifest: str, capsys: pytest.CaptureFixture[str], own: str, fix: str
) -> None:
    kind = "frozenset({'weights.path', 'pause.keep'})"
    component = f"Component('heavy', 'm:E', 's', capabilities={kind})"
    site.add(
        "heavy", manifest + own + f"@hookimpl\ndef astraflow_engines(): return [{component}]\n"
    )
    table = "policies.solver.engine={use='heavy', python='/bin/no-python'}"
    found = findings(capsys, 2, sound, "--set", table)
    assert found["policies.solver.engine.python"]["fix"].startswith(fix)


def test_a_terminal_obeys_no_text_of_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Finding("problem", "engine", "its server said \x1b[31mno", "ask \x1b[2J it")
    monkeypatch.setattr(command, "_findings", lambda arguments: iter([said]))
    assert main(["doctor"]) == 2
    told = capsys.readouterr().out
    assert "said \\u001b[31mno" in told and "ask \\u001b[2J it" in told and "\x1b" not in told


def test_an_invalid_file(sound: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["doctor", sound, "--set", "run.stepz=1", "--set", "policies.solver.engine.use=x"])
        == 2
    )
    out = capsys.readouterr().out
    assert out.count("PROBLEM ") == 2
    assert "did you mean 'steps'?" in out
    assert "→ edit" in out


def test_a_component_without_its_runtime(
    site: Any, sound: str, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    site.add(
        "heavy",
        manifest + "@hookimpl\ndef astraflow_rewards(): return [Component('heavy', 'm:R', 's')]\n",
        metadata='Requires-Dist: huge-backend; extra == "runtime"\n',
    )
    found = findings(capsys, 2, sound, "--set", "reward={use='heavy'}")
    assert found["reward"]["level"] == "problem"
    assert found["reward"]["fix"] == "pip install 'fake-heavy[runtime]'"


@pytest.mark.slow
def test_interpreters_of_roles_are_asked(
    site: Any,
    sound: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(site.folder))
    override = ["--set", f"policies.solver.engine.python={sys.executable}"]
    found = findings(capsys, 0, sound, *override)
    assert found["policies.solver.engine.python"]["text"] == "same versions as here"

    other = tmp_path / "python"
    other.write_text(
        f'#!/bin/sh\nexec {sys.executable} "$@" | sed \'s/"version": "1.0"/"version": "0.9"/\'\n'
    )
    os.chmod(other, 0o755)
    found = findings(capsys, 2, sound, "--set", f"policies.solver.engine.python={other}")
    finding = found["policies.solver.engine.python"]
    assert finding["text"] == "has fake-toy 0.9, this interpreter 1.0"
    assert f"{other} -m pip install" in finding["fix"]
    assert "'fake-toy[runtime]==1.0'" in finding["fix"]

    other.write_text("#!/bin/sh\necho 'No module named astraflow_core' >&2; exit 1\n")
    found = findings(capsys, 2, sound, "--set", f"policies.solver.engine.python={other}")
    assert "No module named astraflow_core" in found["policies.solver.engine.python"]["text"]


def test_an_environment_that_is_not_made_yet_says_how_to_make_it(
    site: Any,
    manifest: str,
    sound: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ASTRAFLOW_ENVIRONMENTS", str(tmp_path / "envs"))
    site.add(
        "heavy",
        f"{manifest}ASTRAFLOW_ENVIRONMENT = 'm:environment'\n"
        "@hookimpl\ndef astraflow_engines(): return [Component('heavy', 'heavy_parts:Part', 's',\n"
        "    None, frozenset({'pause.keep', 'weights.path'}))]\n",
        metadata='Requires-Dist: huge-backend; extra == "runtime"\n',
        modules={"heavy_parts": "class Part: pass\n"},
    )
    found = findings(capsys, 2, sound, "--set", "policies.solver.engine.python=env:own")
    python = found["policies.solver.engine.python"]
    assert python["fix"] == "astraflow env create own --plugin toy"
    found = findings(capsys, 2, sound, "--set", "policies.solver.engine.use=heavy")
    command = "astraflow env create heavy --plugin heavy"
    where = "policies.solver.engine"
    assert found[where]["fix"] == f"{command}, and {where}.python = 'env:heavy'"
    assert found["plugin heavy"]["level"] == "ok" and command in found["plugin heavy"]["text"]


def test_a_broken_model_is_found_by_doctor_and_by_the_launcher(
    sound: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(sound).with_name("model")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    problem = findings(capsys, 2, sound)["policies.solver.model"]
    assert f"{weights} is not a complete safetensors file" in problem["text"]
    assert main(["run", sound]) == 2
    said = capsys.readouterr().err
    assert f"policies.solver.model: {weights} is not a complete safetensors file" in said
    (folder / "config.json").write_text('{\n  "vocab_size": 27,\n')
    assert (
        "config.json: line 3, column 1"
        in findings(capsys, 2, sound)["policies.solver.model"]["text"]
    )
    assert main(["run", sound]) == 2
    said = capsys.readouterr().err
    assert f"{folder}/config.json: line 3, column 1: it is not valid JSON" in said
    assert said.count("\n") == 1
    assert not Path(sound).with_name("runs").exists()


def test_the_name_of_a_hub_says_how_to_fetch_it(
    sound: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = ["--set", "policies.solver.model=Qwen/Qwen3-0.6B"]
    command = "`hf download Qwen/Qwen3-0.6B --local-dir models/qwen3-0.6b`"
    assert command in findings(capsys, 2, sound, *name)["policies.solver.model"]["text"]
    assert main(["run", sound, *name]) == 2
    assert command in capsys.readouterr().err
    assert main(["run", sound, "--set", "policies.solver.model=/gone"]) == 2
    assert "hf download" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("note", "fix"), [(f"it did not end, {BLOCKS}", "`blocking`"), ("it is late", VARIABLE)]
)
def test_code_that_blocks_is_not_given_more_time(
    site: Any, sound: str, monkeypatch: pytest.MonkeyPatch, note: str, fix: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(preflight, "dry_call", lambda *_: note)
    loaded = load_config(sound, (), site.catalog())
    (finding,) = preflight._of_code(loaded.catalog, loaded.config, tmp_path)
    assert finding.level == "warning" and finding.text == note
    assert fix in finding.fix


def test_a_tracker_without_a_method_is_refused_before_the_run(
    site: Any, sound: str, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    component = "Component('lame', 'lame_parts:Lame', 's', None, frozenset({'rollouts'}))"
    site.add(
        "lame",
        manifest + f"@hookimpl\ndef astraflow_trackers(): return [{component}]\n",
        modules={"lame_parts": "class Lame:\n    def started(self, run, config): ...\n    def ended(self, *_): ...\n"},
    )  # fmt: skip
    lacking = "tracker 'lame' of fake-lame 1.0 lacks metrics(), rollouts() in lame_parts:Lame"
    given = ["--set", "trackers.mine.use=lame"]
    found = findings(capsys, 2, sound, *given)
    assert (
        found["trackers.mine"]["level"] == "problem"
        and "fake-lame" in found["trackers.mine"]["fix"]
    )
    assert lacking in found["trackers.mine"]["text"]
    assert main(["run", sound, *given]) == 2
    assert f"trackers.mine: {lacking}" in capsys.readouterr().err
    assert not Path(sound).with_name("runs").exists()
    found = findings(capsys, 0, sound)
    assert found["tracker lame"]["level"] == "warning"
    assert "lacks metrics()" in found["tracker lame"]["text"]
