"""The data that crosses the seams: frozen, numpy only.

prompt → task (a group to roll out) → trajectories of sequences → rows of a batch → a version.
"""

from __future__ import annotations

from astraflow_core.types.batch import Batch
from astraflow_core.types.context import ComponentContext, Ranks, RunInfo
from astraflow_core.types.delivery import Bucket, Delivery, DeviceMemory, Rendezvous
from astraflow_core.types.environment import Action, FunctionCall, Observation, Outcome
from astraflow_core.types.generation import (
    GenerateRequest,
    GenerateResult,
    LogprobSemantics,
    Sampling,
)
from astraflow_core.types.loss import Loss, LossInputs
from astraflow_core.types.policy_data import (
    Branch,
    BufferedRow,
    GroupSummary,
    PoolTarget,
    PoolWindow,
    Verdict,
)
from astraflow_core.types.prompt import Prompt
from astraflow_core.types.resolved_model import ResolvedModel
from astraflow_core.types.trajectory import (
    Completion,
    Group,
    Sequence,
    Trajectory,
    TrajectoryView,
)
from astraflow_core.types.transport_choice import TransportChoice, TransportEnds
from astraflow_core.types.turns import GroupTurns
from astraflow_core.types.units import Units
from astraflow_core.types.weights import (
    Announcement,
    ExportedTensor,
    Link,
    Manifest,
    Source,
    TensorSlice,
    TensorSpec,
    WeightSource,
)

__all__ = [
    "Action",
    "Announcement",
    "Batch",
    "Branch",
    "Bucket",
    "BufferedRow",
    "Completion",
    "ComponentContext",
    "Delivery",
    "DeviceMemory",
    "ExportedTensor",
    "FunctionCall",
    "GenerateRequest",
    "GenerateResult",
    "Group",
    "GroupSummary",
    "GroupTurns",
    "Link",
    "LogprobSemantics",
    "Loss",
    "LossInputs",
    "Manifest",
    "Observation",
    "Outcome",
    "PoolTarget",
    "PoolWindow",
    "Prompt",
    "Ranks",
    "Rendezvous",
    "ResolvedModel",
    "RunInfo",
    "Sampling",
    "Sequence",
    "Source",
    "TensorSlice",
    "TensorSpec",
    "Trajectory",
    "TrajectoryView",
    "TransportChoice",
    "TransportEnds",
    "Units",
    "Verdict",
    "WeightSource",
]
