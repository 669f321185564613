"""Code that runs on a GPU only is listed, each function with a test of its logic for any machine and with one for a GPU.

A path that nobody can run here would otherwise rot unseen. The list is ``cuda_paths.toml``.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from workspace import ROOT

LISTED = ROOT / "tests" / "cuda_paths.toml"
SOURCES = ("core/src", "runtime/src", "libs/*/src", "plugins/*/*/src", "contrib/*/src", "contrib/*/*/src")  # fmt: skip
ATTRIBUTES = frozenset({"cuda", "is_cuda", "cudart", "_share_cuda_", "_new_shared_cuda"})
WORDS = frozenset({"cuda", "nccl"})
STAND_INS = (
    "libs/torch_weights/src/astraflow_torch_weights/fake_cuda.py",
    "plugins/trainers/megatron/src/astraflow_plugin_megatron/cpu.py",
)
"""Modules that are themselves CUDA for a CPU."""
GPU_MARK = "pytest.mark.gpu"


def of_cuda(node: ast.AST) -> bool:
    """Whether a function names CUDA: ``torch.cuda``, ``is_cuda``, or the word for a device or a backend."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and part.attr in ATTRIBUTES:
            return True
        if isinstance(part, ast.Constant) and part.value in WORDS:
            return True
    return False


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def found_in(file: Path) -> set[str]:
    text = file.read_text(encoding="utf-8")
    if not any(word in text for word in WORDS):
        return set()
    return {name for name, node in functions(ast.parse(text)) if of_cuda(node)}


def listed() -> dict[str, list[str]]:
    """Function by its place in the checkout → its two tests."""
    tables = tomllib.loads(LISTED.read_text(encoding="utf-8"))
    return {
        f"{folder}/{place}": tests
        for folder, table in tables.items()
        for place, tests in table.items()
    }


def marks_of(file: Path) -> dict[str, str]:
    """The tests and classes of tests of a file → the source that decides on their marks, the module's own included."""
    text = file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    whole = "".join(ast.unparse(node) for node in tree.body if isinstance(node, ast.Assign))
    marks: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            marks[node.name] = whole + "".join(map(ast.unparse, node.decorator_list))
    return marks


def test_every_function_for_a_gpu_is_listed() -> None:
    files = {
        file
        for pattern in SOURCES
        for folder in ROOT.glob(pattern)
        for file in folder.rglob("*.py")
    }
    found = {
        f"{place}::{name}"
        for file in files
        if (place := file.relative_to(ROOT).as_posix()) not in STAND_INS
        for name in found_in(file)
    }
    assert len(found) > 30
    new, gone = sorted(found - listed().keys()), sorted(listed().keys() - found)
    assert not new, f"name a test for any machine and one marked gpu in {LISTED.name} for {new}"
    assert not gone, f"has no code for a GPU any longer, take it out of {LISTED.name}: {gone}"


@pytest.mark.parametrize("place", sorted(listed()))
def test_its_tests_exist_and_only_the_second_needs_a_gpu(place: str) -> None:
    anywhere, on_gpu = listed()[place]
    for test, needs_gpu in ((anywhere, False), (on_gpu, True)):
        file, _, name = test.partition("::")
        marks = marks_of(ROOT / file)
        assert name in marks, f"there is no test {test}"
        assert (GPU_MARK in marks[name]) is needs_gpu, test


def test_code_for_a_gpu_is_recognised() -> None:
    source = """
class Engine:
    def a(self): torch.cuda.synchronize()
    def b(self): return self.device.type == "cuda"
    def c(self): return buffer.is_cuda
    def d(self): return "cuda is not meant by this"
def e(): return "nccl"
"""
    named = {name for name, node in functions(ast.parse(source)) if of_cuda(node)}
    assert named == {"Engine.a", "Engine.b", "Engine.c", "e"}
