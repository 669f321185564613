"""Prompt source ``screened``: another source without duplicates, and without what evaluation sets have."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator

from astraflow_contrib_prompts.config import ScreenedConfig
from astraflow_contrib_prompts.texts import ngrams, normalised, text_hash
from astraflow_core.component import Kind
from astraflow_core.errors import PromptError
from astraflow_core.nested import build_component
from astraflow_core.protocols.prompt_source import PromptSource
from astraflow_core.types import ComponentContext, Prompt

log = logging.getLogger("astraflow.prompts")
_SHOWN = 3


class Screened:
    """Texts are compared normalised; ``ngram`` words in a row that an evaluation set has, too, count as in the 13-gram
    check of Brown et al. 2020 (arXiv:2005.14165, appendix C). A few bytes are held for each prompt and n-gram."""

    def __init__(self, config: ScreenedConfig, context: ComponentContext) -> None:
        self._source: PromptSource = build_component(Kind.PROMPT_SOURCE, config.source, context)
        known = {
            name: _Known(build_component(Kind.PROMPT_SOURCE, table, context), config.ngram)
            for name, table in config.against.items()
        }
        self._chosen = array("Q")
        seen: set[int] = set()
        duplicates: list[str] = []
        shared: dict[str, list[str]] = {name: [] for name in known}
        for index, prompt in _prompts(self._source):
            text = normalised(prompt)
            digest = text_hash(text)
            if config.deduplicate and digest in seen:
                duplicates.append(prompt.id)
                continue
            seen.add(digest)
            met = [name for name, other in known.items() if other.has(text, digest)]
            for name in met:
                shared[name].append(prompt.id)
            if not met or config.on_overlap != "drop":
                self._chosen.append(index)
        if duplicates:
            log.info("prompt source 'screened': %s left out as duplicates", _summary(duplicates))
        for name, ids in shared.items():
            if ids:
                self._overlap(config, name, ids)
        if not self._chosen:
            raise PromptError("prompt source 'screened': no prompt is left")

    def _overlap(self, config: ScreenedConfig, name: str, ids: list[str]) -> None:
        what = f"the text or {config.ngram} words in a row" if config.ngram else "the text"
        said = f"prompt source 'screened': {_summary(ids)} of {len(self._source)} with {what} of {name!r} in common"
        if config.on_overlap == "refuse":
            raise PromptError(
                f"{said}; training prompts must not be used for evaluation. Leave them out with on_overlap = 'drop', or continue "
                "with 'warn'"
            )
        log.warning("%s%s", said, "; left out" if config.on_overlap == "drop" else "")

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> Prompt:
        if not 0 <= index < len(self):
            raise IndexError(f"prompt {index} of {len(self)}")
        return self._source[self._chosen[index]]


class _Known:
    """The texts of a source, and their n-grams."""

    def __init__(self, source: PromptSource, count: int) -> None:
        self._count = count
        self._texts: set[int] = set()
        self._ngrams: set[int] = set()
        for _, prompt in _prompts(source):
            text = normalised(prompt)
            self._texts.add(text_hash(text))
            if count:
                self._ngrams.update(ngrams(text, count))

    def has(self, text: str, digest: int) -> bool:
        if digest in self._texts:
            return True
        return bool(self._count) and any(n in self._ngrams for n in ngrams(text, self._count))


def _prompts(source: PromptSource) -> Iterator[tuple[int, Prompt]]:
    for index in range(len(source)):
        yield index, source[index]


def _summary(ids: list[str]) -> str:
    shown = ", ".join(repr(each[:60]) for each in ids[:_SHOWN])
    return f"{len(ids)} prompts ({shown}{' …' if len(ids) > _SHOWN else ''})"
