"""The file that says how rollout services of the public protocol work for a run."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator

from astraflow_core.config.models import ConfigModel, PositiveInt
from astraflow_core.errors import ConfigError, UserError

Seconds = Annotated[float, Field(gt=0, le=86400)]
Plain = str | int | float | bool | list[Any] | dict[str, Any]


class WorkflowTable(ConfigModel):
    """``[workflow]``: what is sent to ``/register_workflow``."""

    workflow_cls: str = Field(description="Registry name of the workflow, as the RaaS knows it.")
    reward_fn: str = Field("", description="Registry name of the reward; empty: none is named.")
    gconfig_overrides: dict[str, Plain] = Field(
        {}, description="Added to the sampling of each task."
    )
    workflow_kwargs: dict[str, Plain] = Field({}, description="Passed to the workflow as they are.")
    samples_key: str = Field(
        "n_samples", description="Key of gconfig_overrides with the episodes of a submission."
    )


class DoorConfig(ConfigModel):
    """Keys of both directions."""

    listen: str = Field(
        "127.0.0.1:8000", description="HOST:PORT for the other side; port 0: any that is free."
    )
    advertise: str = Field(
        "", description="Host by which the other side reaches this process; empty: that of listen."
    )
    key_file: Path = Field(
        description="File with the key of the other side; it is written if absent."
    )
    models: dict[str, str] = Field(
        {}, description="Policy → id of its model; empty: model0, model1 … in the run's order."
    )
    max_body_mb: Annotated[int, Field(ge=1, le=256)] = Field(
        32, description="Most megabytes of a pickle."
    )
    weights_s: Seconds = Field(600.0, description="Longest time of one update of the weights.")

    @field_validator("models")
    @classmethod
    def _distinct(cls, models: dict[str, str]) -> dict[str, str]:
        if len(set(models.values())) < len(models):
            raise ValueError("two policies have the same id")
        return models

    def model_ids(self, policies: list[str]) -> dict[str, str]:
        """Policy → id of its model in the public protocol."""
        if not self.models:
            return {policy: f"model{number}" for number, policy in enumerate(policies)}
        if set(self.models) != set(policies):
            raise UserError(
                f"models names {', '.join(self.models)}; the run has the policies {', '.join(policies)}: name each once"
            )
        return dict(self.models)


class CompatConfig(DoorConfig):
    """Keys of ``compat raas``: RaaS of the public protocol for our dataflow."""

    workflow: WorkflowTable
    submission: Literal["group", "episode"] = Field(
        "group", description="What one submission is: all episodes of a task, or one of them."
    )
    evaluation: Literal["windows", "submit"] = Field(
        "windows",
        description="How evaluation tasks are submitted: by the five optional endpoints, or as others.",
    )
    call_s: Seconds = Field(30.0, description="Longest time of a call but those below.")
    ready_s: Seconds = Field(120.0, description="Longest time until a RaaS is ready.")
    heartbeat_s: Seconds = Field(
        10.0, description="Time between two GET /status; two that fail end its registration."
    )
    poll_s: Seconds = Field(0.1, description="Time between two calls of /pull.")
    shutdown: bool = Field(True, description="Whether RaaS are shut down at the end of the run.")
    max_raas: PositiveInt = Field(64, description="Most RaaS at a time.")


class DataflowConfig(DoorConfig):
    """Keys of ``compat dataflow``: our RaaS for a dataflow of the public protocol."""

    workflow: WorkflowTable
    raas_listen: str = Field(
        "127.0.0.1:0", description="HOST:PORT where our RaaS reach this process."
    )
    register_at: str = Field(
        "",
        description="URL of the public dataflow, to register there; empty: the adapter does not register.",
    )
    uid: str = Field("astraflow", description="Name to register with.")
    gpu_count: Annotated[int, Field(ge=0)] = Field(0, description="GPUs to register with.")
    tensors: bool = Field(
        True, description="Send arrays as tensors of PyTorch; false: as NumPy arrays."
    )


class TrainerConfig(DoorConfig):
    """Keys of ``compat trainer``: trainers of the public protocol for our dataflow."""

    tensors: bool = Field(
        True, description="Send arrays as tensors of PyTorch; false: as NumPy arrays."
    )


C = TypeVar("C", bound=DoorConfig)


def read_compat(file: Path, kind: type[C]) -> C:
    """The file's contents; raises :class:`ConfigError` with every problem. ``key_file`` starts from the file."""
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError([f"it is not TOML: {error}"], str(file)) from error
    try:
        config = kind.model_validate(raw)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, each['loc'])) or 'the file'}: {each['msg']}"
            for each in error.errors()
        ]
        raise ConfigError(lines, str(file)) from error
    return config.model_copy(update={"key_file": file.parent / config.key_file})
