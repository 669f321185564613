"""Keys of the launcher."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import Seconds
from astraflow_launching.keys import Amount, RemoteKeys

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Key = Annotated[
    str, Field(pattern=r"^([a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")
]
Value = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?$")]
Word = Annotated[str, Field(pattern=r"^[^\s\x00-\x1f]+$")]
Path = Annotated[str, Field(pattern=r"^/[^\x00-\x1f:]*$")]


class KubernetesConfig(RemoteKeys):
    """``launcher = { use = "kubernetes", image = "registry.example/astraflow:1", claim = "runs", raas = { gpus = 1 } }``"""

    image: Word = Field(description="Image of all pods, with AstraFlow and the plugins of the run.")
    pull_secret: Name | None = Field(
        default=None, description="Secret with which the image is pulled."
    )
    namespace: Name | None = Field(
        default=None, description="Namespace; default: that of this pod, or of the context."
    )
    context: str | None = Field(
        default=None,
        description="Context of the kubeconfig; default: the current one. Not used inside a cluster.",
    )
    claim: Name | None = Field(
        default=None, description="Persistent volume claim with the run directory."
    )
    volume: dict[str, Any] | None = Field(
        default=None,
        description="Another source of that volume, as a pod has it, such as { nfs = { server = 'nas', path = '/runs' } }.",
    )
    mount: Path = Field(default="/runs", description="Path at which pods mount claim or volume.")
    agent_python: Word = Field(
        default="python3",
        description="Interpreter of the image that starts processes.",
    )
    python: Word | None = Field(
        default=None,
        description="Interpreter of the image with AstraFlow; default: the path of the launcher's own.",
    )
    directory: Path | None = Field(
        default=None,
        description="Folder in which processes start; default: the path of the launcher's current folder.",
    )
    service_account: Name | None = Field(
        default=None,
        description="Service account of the pods, which get no token of it; default: that of the namespace.",
    )
    gpu_resource: Key = Field(
        default="nvidia.com/gpu", description="Name of the resource that gpus asks for."
    )
    spot_labels: dict[Key, Value] = Field(
        default={},
        description="Labels of spot nodes: pods whose processes all have spot = true are put there, and tolerate taints of "
        "these names.",
    )
    tolerations: tuple[Key, ...] = Field(
        default=(), description="Names of taints that every pod tolerates."
    )
    priority_class: Name | None = Field(default=None, description="Priority class of the pods.")
    queue: Value | None = Field(
        default=None, description="Local queue of Kueue that admits the jobs; default: no Kueue."
    )
    shared_memory_gb: Amount | None = Field(
        default=None,
        description="Limit of /dev/shm, 10^9 bytes; it counts as memory of the pod. Default: half of the node's memory.",
    )
    address: str | None = Field(
        default=None,
        description="Address of this host that pods reach; default: the one from which it reaches the API server.",
    )
    queue_s: Seconds = Field(
        default=3600.0, description="Maximum time to wait until the first pods run."
    )

    @model_validator(mode="after")
    def _one_volume(self) -> Self:
        if self.claim is not None and self.volume is not None:
            raise ValueError("claim and volume are two sources of the same volume: give one")
        return self
