"""What a client has at the server: its models, and what it samples from."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from astraflow_contrib_tinker.work.futures import Promise
from astraflow_contrib_tinker.work.sampling import WeightsSnapshot
from astraflow_contrib_tinker.work.training import TrainedModel


@dataclass
class ClientSampler:
    """What a sampling session samples from: ``model_path``, unnamed weights of ``model``, or the base model. With ``follows`` it
    is the newest weights that the model gave its followers."""

    id: str
    snapshot: WeightsSnapshot
    model_path: str | None = None
    model: str | None = None
    follows: bool = False
    made: OrderedDict[int, tuple[bytes, Promise, list[str]]] = field(default_factory=OrderedDict)


@dataclass
class ClientSession:
    """What one client has; ``key`` is the name of the key that it has."""

    id: str
    metadata: dict[str, str]
    seen: float
    key: str = ""
    models: dict[str, TrainedModel] = field(default_factory=dict)
    samplers: OrderedDict[str, ClientSampler] = field(default_factory=OrderedDict)
