"""The data that crosses the seams: frozen, numpy only.

prompt → task (a group to roll out) → trajectories of sequences → rows of a batch → a version.
"""

from __future__ import annotations

from astraflow_core.types.batch import Batch as Batch
from astraflow_core.types.context import ComponentContext as ComponentContext
from astraflow_core.types.context import Ranks as Ranks
from astraflow_core.types.context import RunInfo as RunInfo
from astraflow_core.types.delivery import Bucket as Bucket
from astraflow_core.types.delivery import Delivery as Delivery
from astraflow_core.types.delivery import DeviceMemory as DeviceMemory
from astraflow_core.types.delivery import Rendezvous as Rendezvous
from astraflow_core.types.environment import Action as Action
from astraflow_core.types.environment import FunctionCall as FunctionCall
from astraflow_core.types.environment import Observation as Observation
from astraflow_core.types.environment import Outcome as Outcome
from astraflow_core.types.generation import GenerateRequest as GenerateRequest
from astraflow_core.types.generation import GenerateResult as GenerateResult
from astraflow_core.types.generation import Images as Images
from astraflow_core.types.generation import ImageSpan as ImageSpan
from astraflow_core.types.generation import LogprobSemantics as LogprobSemantics
from astraflow_core.types.generation import Sampling as Sampling
from astraflow_core.types.loss import Loss as Loss
from astraflow_core.types.loss import LossInputs as LossInputs
from astraflow_core.types.named_rewards import NamedRewards as NamedRewards
from astraflow_core.types.policy_data import Branch as Branch
from astraflow_core.types.policy_data import BufferedRow as BufferedRow
from astraflow_core.types.policy_data import GroupSummary as GroupSummary
from astraflow_core.types.policy_data import PoolTarget as PoolTarget
from astraflow_core.types.policy_data import PoolWindow as PoolWindow
from astraflow_core.types.policy_data import Verdict as Verdict
from astraflow_core.types.prompt import Prompt as Prompt
from astraflow_core.types.trajectory import Completion as Completion
from astraflow_core.types.trajectory import Group as Group
from astraflow_core.types.trajectory import RewardReport as RewardReport
from astraflow_core.types.trajectory import Sequence as Sequence
from astraflow_core.types.trajectory import Trajectory as Trajectory
from astraflow_core.types.trajectory import TrajectoryView as TrajectoryView
from astraflow_core.types.transport_choice import TransportChoice as TransportChoice
from astraflow_core.types.transport_choice import TransportEnds as TransportEnds
from astraflow_core.types.turns import GroupTurns as GroupTurns
from astraflow_core.types.units import Units as Units
from astraflow_core.types.weights import Announcement as Announcement
from astraflow_core.types.weights import ExportedTensor as ExportedTensor
from astraflow_core.types.weights import Link as Link
from astraflow_core.types.weights import Manifest as Manifest
from astraflow_core.types.weights import ResolvedModel as ResolvedModel
from astraflow_core.types.weights import Source as Source
from astraflow_core.types.weights import TensorSlice as TensorSlice
from astraflow_core.types.weights import TensorSpec as TensorSpec
from astraflow_core.types.weights import WeightSource as WeightSource
