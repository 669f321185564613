"""Chat templates of Hugging Face folders, rendered as transformers' ``apply_chat_template`` does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from astraflow_core.errors import UserError

_SPECIAL = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_CACHED = 1024


class _GenerationBlock(Extension):
    """``{% generation %}`` marks the text of the assistant; it is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Parse the nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def token_text(value: Any) -> str | None:
    """The text of a token in ``tokenizer_config.json``: a string, or an object with ``content``."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None


def read_template(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """The template of a model folder: ``chat_template.jinja``, else the one named ``default`` (or the
    only one) in ``tokenizer_config.json``; ``None`` if there is none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = tokenizer_config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


class ChatTemplate:
    """Renders messages to the text format of the model. ``folder`` is named in errors."""

    def __init__(self, folder: Path, tokenizer_config: Mapping[str, Any]) -> None:
        self._folder = folder
        texts = {name: token_text(tokenizer_config.get(name)) for name in _SPECIAL}
        self._special = {name: text for name, text in texts.items() if text is not None}
        source = read_template(folder, tokenizer_config)
        self._template: jinja2.Template | None = None
        if source is not None:
            try:
                self._template = _environment().from_string(source)
            except jinja2.TemplateSyntaxError as error:
                raise UserError(f"the chat template of {folder} is broken: {error}") from error
        self._render_json = lru_cache(_CACHED)(self._render_uncached)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The text of ``messages``; :class:`UserError` if there is no template or it rejects them."""
        given = msgspec.json.encode(tools) if tools else b""
        return self._render_json(msgspec.json.encode(messages), add_generation_prompt, given)

    def _render_uncached(self, messages: bytes, add_generation_prompt: bool, tools: bytes) -> str:
        if self._template is None:
            raise UserError(
                f"the model in {self._folder} has no chat template, so it cannot render messages; "
                "pass the prompt as a string, or add a chat_template.jinja to the folder"
            )
        try:
            return self._template.render(
                messages=json.loads(messages),
                tools=json.loads(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except Exception as error:  # a template is a program and may raise anything
            what = str(error) if isinstance(error, jinja2.TemplateError) else repr(error)
            raise UserError(
                f"the chat template of {self._folder} rejected the messages: {what}"
            ) from error
