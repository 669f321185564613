"""Small models that have imitated a few demonstrations, as a start for reinforcement learning.

A model with random weights never writes a whole command, so that nothing is rewarded. Here the bytes of demonstrations make a
vocabulary, and a transformer imitates the demonstrator's replies for a number of updates: few enough that it mostly fails.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from astraflow_tiny_model.folder import CHAT_TEMPLATE

PAD, END = "<pad>", "<end>"
Dialogue = Sequence[tuple[str, str]]
"""What was told and what was replied, turn by turn."""


@dataclass(frozen=True, slots=True)
class Imitation:
    """``updates`` of ``batch`` dialogues each, at a learning rate that falls linearly, of ``dialogues`` drawn from all of them
    (none: of all); ``words`` of the vocabulary; ``hidden`` and ``layers`` of the transformer; ``context``: the most tokens of
    a sequence."""

    updates: int
    batch: int = 32
    lr: float = 3e-3
    words: int = 512
    hidden: int = 128
    layers: int = 2
    context: int = 512
    dialogues: int | None = None


def write_warm_model(
    folder: Path, dialogues: Sequence[Dialogue], how: Imitation, seed: int
) -> float:
    """Write a Hugging Face folder of a model that imitates the replies; the mean loss of a token in the last tenth of the
    updates."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # threads of so small a model mostly wait for each other
    tokenizer = _tokenizer(dialogues, how.words)
    model = Qwen3ForCausalLM(_config(tokenizer, how))
    shown = random.Random(seed).sample(dialogues, how.dialogues or len(dialogues))
    rows = [_row(dialogue, tokenizer)[: how.context] for dialogue in shown]
    optimizer = torch.optim.AdamW(model.parameters(), lr=how.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda at: min(1.0, (at + 1) / 10) * (1 - 0.9 * at / how.updates)
    )
    losses: list[float] = []
    for batch in _batches(rows, how, random.Random(seed)):
        tokens, labels = _padded(batch, _id(tokenizer, PAD))
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        model_max_length=how.context,
    ).save_pretrained(folder)
    last = losses[-max(1, how.updates // 10) :]
    return sum(last) / len(last)


def _tokenizer(dialogues: Sequence[Dialogue], words: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=words,
        special_tokens=[PAD, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (text for dialogue in dialogues for turn in dialogue for text in turn)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _id(tokenizer: Tokenizer, special: str) -> int:
    found: int | None = tokenizer.token_to_id(special)
    assert found is not None, "a special token has an id"
    return found


def _config(tokenizer: Tokenizer, how: Imitation) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=how.hidden,
        intermediate_size=3 * how.hidden,
        num_hidden_layers=how.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=how.hidden // 4,
        max_position_embeddings=how.context,
        tie_word_embeddings=True,
        pad_token_id=_id(tokenizer, PAD),
        eos_token_id=_id(tokenizer, END),
        bos_token_id=None,
    )


def _row(dialogue: Dialogue, tokenizer: Tokenizer) -> list[tuple[int, bool]]:
    """Tokens, and whether each is one that the model writes."""
    row: list[tuple[int, bool]] = []
    for told, replied in dialogue:
        row += [(token, False) for token in tokenizer.encode(told).ids]
        row += [(token, True) for token in tokenizer.encode(replied).ids]
        row.append((_id(tokenizer, END), True))
    return row


def _batches(
    rows: list[list[tuple[int, bool]]], how: Imitation, drawn: random.Random
) -> Iterator[list[list[tuple[int, bool]]]]:
    for _ in range(how.updates):
        yield drawn.choices(rows, k=how.batch)


def _padded(batch: list[list[tuple[int, bool]]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels ``[rows, longest]``; a label is -100 where nothing is imitated."""
    longest = max(map(len, batch))
    tokens = torch.full((len(batch), longest), pad)
    labels = torch.full((len(batch), longest), -100)
    for at, row in enumerate(batch):
        tokens[at, : len(row)] = torch.tensor([token for token, _ in row])
        labels[at, : len(row)] = torch.tensor([token if own else -100 for token, own in row])
    return tokens, labels
