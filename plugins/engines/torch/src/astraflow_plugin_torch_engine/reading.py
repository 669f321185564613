"""The images of requests, on their way to the decoding thread."""

from __future__ import annotations

from astraflow_plugin_torch_engine.model import CausalModel
from astraflow_torch_weights.pixels import PixelReader


class ImageReader(PixelReader):
    """Decodes them off the event loop and the decoding thread; the pixels stay in the model's cache."""

    def __init__(self, model: CausalModel) -> None:
        super().__init__("torch", model.folder, model.images)
