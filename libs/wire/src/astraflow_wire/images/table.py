"""Images of the sequences of a message: a table in its header, and one buffer with the file of each image once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from astraflow_core.errors import WireError
from astraflow_core.types import Images, ImageSpan
from astraflow_core.types import Sequence as TokenSequence
from astraflow_core.types.generation import images_between
from astraflow_wire.images.files import MAX_BYTES, digest_of
from astraflow_wire.limits import MAX_SEQUENCES, GroupCount, Length

Bytes = bytes | memoryview


class ImagePlace(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The tokens from ``start``, ``length`` of them, counted over all tokens of the message, stand for image number
    ``image`` of the table."""

    start: GroupCount
    length: Length
    image: GroupCount


class ImageTable(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """``places`` in ascending order. Each image once: its SHA-256 in hex and the bytes of its file, which follow each
    other in a buffer of the message."""

    places: Annotated[list[ImagePlace], Meta(max_length=MAX_SEQUENCES)]
    digests: Annotated[
        list[Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]], Meta(max_length=MAX_SEQUENCES)
    ]
    sizes: Annotated[list[Annotated[int, Meta(ge=1, le=MAX_BYTES)]], Meta(max_length=MAX_SEQUENCES)]


def encode(images: Iterable[ImageSpan]) -> tuple[ImageTable | UnsetType, list[list[Bytes]]]:
    """The table and the buffer, in a list; none if there are no ``images``, which are in ascending order."""
    numbers: dict[str, int] = {}
    files: list[Bytes] = []
    places = []
    for image in images:
        number = numbers.setdefault(image.digest, len(files))
        if number == len(files):
            files.append(image.data)
        places.append(ImagePlace(image.start, image.length, number))
    if not places:
        return UNSET, []
    return ImageTable(places, list(numbers), [len(data) for data in files]), [files]


def decode(table: ImageTable | UnsetType, buffers: Sequence[Bytes], ends: Sequence[int]) -> Images:
    """The images of a message from the last of its ``buffers``; their files are views. ``ends``: the index after the last
    token of each of its sequences. :class:`WireError` if a digest is not that of the bytes, or a place is not within one
    sequence, or begins before the previous one ends."""
    if table is UNSET:
        return ()
    if not buffers or memoryview(buffers[-1]).nbytes != sum(table.sizes):
        raise WireError(
            f"the files of images have other than the {sum(table.sizes)} bytes announced"
        )
    if len(table.digests) != len(table.sizes):
        raise WireError(f"images: {len(table.digests)} digests of {len(table.sizes)} files")
    files = _files(table, memoryview(buffers[-1]).cast("B"))
    images: list[ImageSpan] = []
    sequences = iter(ends)
    before, end = 0, next(sequences, 0)
    for place in table.places:
        while place.start >= end and (following := next(sequences, None)) is not None:
            before, end = max(before, end), following
        if place.start < before or place.start + place.length > end or place.image >= len(files):
            raise WireError(
                f"image {place.image} at the tokens {place.start} to {place.start + place.length - 1}: expected one of "
                f"{len(files)} images, within one sequence, after the tokens of the previous image"
            )
        digest = table.digests[place.image]
        images.append(ImageSpan(place.start, place.length, digest, files[place.image]))
        before = place.start + place.length
    return tuple(images)


def _files(table: ImageTable, data: memoryview) -> list[memoryview]:
    files = []
    start = 0
    for digest, size in zip(table.digests, table.sizes, strict=True):
        file = data[start : start + size]
        if (found := digest_of(file)) != digest:
            raise WireError(f"an image with the digest {digest} has the bytes of {found}")
        files.append(file)
        start += size
    return files


def of_sequences(sequences: Iterable[TokenSequence]) -> list[ImageSpan]:
    """The images of sequences that follow each other in a message."""
    found: list[ImageSpan] = []
    place = 0
    for each in sequences:
        found += (image.moved(place) for image in each.images)
        place += len(each.tokens)
    return found


def of_runs(runs: Iterable[tuple[Images, int, int]]) -> list[ImageSpan]:
    """Those of runs of tokens that follow each other in a message: of each the images of the message that it comes from,
    its first token there and the end."""
    found: list[ImageSpan] = []
    place = 0
    for images, start, end in runs:
        if images:
            found += images_between(images, start, end, place)
        place += end - start
    return found


def encode_joined(given: Iterable[tuple[Images, int]]) -> tuple[ImageTable | None, list[bytes]]:
    """The table and the buffer, in a list, of sequences that follow each other in a message: of each its images and how many
    tokens it has. ``None`` and no buffer without images."""
    table, pieces = encode(of_runs((images, 0, length) for images, length in given))
    if isinstance(table, UnsetType):
        return None, []
    return table, [b"".join(piece) for piece in pieces]
