"""The tokenizer of a Hugging Face folder, by the ``tokenizers`` library alone."""

from __future__ import annotations

import json
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
import xxhash

from astraflow_core.errors import UserError
from astraflow_core.protocols.workflow import Messages, Tools
from astraflow_gateway.chat.quoting import Quoting
from astraflow_runtime.raas.episodes.chat_template import ChatTemplate, token_text

_CACHED = 4096
_NO_CHARACTER = (
    "; the model has no token for a character of this text: change the text, or name a model that has one (a tiny: model "
    "has the characters of its alphabet=)"
)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object")
    return value


class FolderTokenizer:
    """Implements :class:`astraflow_core.protocols.workflow.Tokenizer`, and renders chat messages.

    Repeated texts, such as the prompt of a group's episodes, are encoded once.
    """

    def __init__(self, folder: Path) -> None:
        self._file = file = folder / "tokenizer.json"
        if not file.is_file():
            raise UserError(f"{folder} has no tokenizer.json; the RaaS needs it")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises Exception itself
            raise UserError(f"{file} cannot be read as a tokenizer: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        config = _read_json(folder / "tokenizer_config.json")
        self._template = ChatTemplate(folder, config)
        self._eos = self._find_eos(folder, config)
        self._encode = lru_cache(_CACHED)(self._encode_uncached)

    def _find_eos(self, folder: Path, tokenizer_config: dict[str, Any]) -> tuple[int, ...]:
        model = _read_json(folder / "config.json")
        for source in (
            _read_json(folder / "generation_config.json"),
            model,
            model.get("text_config") or {},
        ):
            ids = source.get("eos_token_id")
            if isinstance(ids, int):
                return (ids,)
            if isinstance(ids, list) and ids:
                return tuple(ids)
        text = token_text(tokenizer_config.get("eos_token"))
        found = self._tokenizer.token_to_id(text) if text is not None else None
        return () if found is None else (found,)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a sequence: of the generation config, else the model's, else the tokenizer's."""
        return self._eos

    @cached_property
    def fingerprint(self) -> str:
        """Of the texts of all token ids."""
        known = sorted(self._tokenizer.get_vocab(with_added_tokens=True).items())
        return xxhash.xxh3_128_hexdigest(json.dumps(known).encode())

    @cached_property
    def special_texts(self) -> tuple[str, ...]:
        """Texts of the tokens that ``tokenizer.json`` calls special."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        return tuple(token.content for token in added if token.special)

    def encode(self, text: str) -> npt.NDArray[np.int32]:
        """Token ids ``[T]``, read-only, no special tokens added."""
        return self._encode(text)

    def _encode_uncached(self, text: str) -> npt.NDArray[np.int32]:
        try:
            encoded = self._tokenizer.encode(text, add_special_tokens=False)
        except Exception as error:  # tokenizers raises Exception itself
            file = f"{self._file.parent.name}/{self._file.name}"
            hint = _NO_CHARACTER if "[UNK]" in str(error) else ""
            raise UserError(f"{file} cannot encode {text!r:.80}: {error}{hint}") from error
        ids = np.array(encoded.ids, dtype=np.int32)
        ids.flags.writeable = False
        return ids

    def decode(self, tokens: npt.NDArray[np.int32], skip_special: bool = True) -> str:
        """Text of token ids."""
        text: str = self._tokenizer.decode(tokens.tolist(), skip_special_tokens=skip_special)
        return text

    def render(
        self, messages: Messages | str, add_generation_prompt: bool = True
    ) -> npt.NDArray[np.int32]:
        """Token ids of chat messages by the model's template; a string is encoded as it is. Special
        tokens quoted in messages stay text, as in the gateway.
        """
        if isinstance(messages, str):
            return self.encode(messages)
        return self._quoting.render(
            messages, lambda said, tools: self.chat_text(said, add_generation_prompt, tools)
        )

    @cached_property
    def _quoting(self) -> Quoting:
        return Quoting(self)

    def chat_text(
        self, messages: Messages, add_generation_prompt: bool = True, tools: Tools = ()
    ) -> str:
        """The text of chat messages by the model's template."""
        return self._template.render(messages, add_generation_prompt, tools)
