"""Whether the images of a pushed group are such as the models of its policies read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from astraflow_core.errors import WireError
from astraflow_core.types.trajectory import NOT_SAMPLED
from astraflow_wire.images.files import MAX_IMAGES, opened
from astraflow_wire.images.model import ImageModel

if TYPE_CHECKING:
    from astraflow_wire.groups import ReceivedGroup


def check_images(group: ReceivedGroup, models: Mapping[str, ImageModel | None]) -> None:
    """Reject (:class:`WireError`) images of a policy whose model gets none, that are too many, too large or not of a known
    format, or whose tokens were sampled or are not the placeholders of its model."""
    counts: Counter[int] = Counter()
    for image in group.images:
        index = int(np.searchsorted(group.offsets, image.start, side="right")) - 1
        policy = group.header.sequences[index].policy
        who = f"RaaS {group.header.raas!r:.80}, sequence {index} of policy {policy!r:.80}"
        counts[index] += 1
        if (model := models.get(policy)) is None:
            raise WireError(f"{who}: has an image; the policy is without images = true in this run")
        if counts[index] > MAX_IMAGES:
            raise WireError(f"{who}: has more than {MAX_IMAGES} images")
        tokens = group.tokens[image.start : image.end]
        if image.length != model.length or (tokens != model.token).any():
            raise WireError(
                f"{who}: an image at token {image.start - int(group.offsets[index])} has {image.length} tokens; expected "
                f"{model.length} placeholders, token {model.token}"
            )
        if (group.versions[image.start : image.end] != NOT_SAMPLED).any():
            raise WireError(f"{who}: placeholders of an image were sampled; expected version -1")
    for digest, data in {image.digest: image.data for image in group.images}.items():
        try:
            opened(data)
        except ValueError as error:
            raise WireError(f"RaaS {group.header.raas!r:.80}: image {digest}: {error}") from error
