"""The settings of a child of a RaaS: a file that only its owner may read; the token is passed in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from astraflow_core.config.models import RunConfig
from astraflow_wire.host.disk import replace_file
from astraflow_wire.http.access import only_shared

TOKEN_VARIABLE = "ASTRAFLOW_TOKEN"


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """``config`` is the run's configuration as JSON, ``directory`` the run's, ``raas`` the name of the
    RaaS, ``policy`` the policy that the child works for (empty: none in particular) and ``replica`` its number among
    the engines of that policy, ``address`` where it reports, ``parent`` the process that it must not outlive."""

    config: str
    directory: str
    raas: str
    parent: int
    policy: str = ""
    replica: int = 0
    address: str = ""

    @property
    def part(self) -> str:
        """The policy and the replica, as files and logs name them."""
        return part_name(self.policy, self.replica)

    @property
    def run_config(self) -> RunConfig:
        """The configuration, validated again."""
        return RunConfig.model_validate_json(self.config)


def part_name(policy: str, replica: int) -> str:
    """``POLICY`` for the first replica, ``POLICY-N`` for the others."""
    return f"{policy}-{replica}" if replica else policy


def write_spec(path: Path, spec: ChildSpec) -> None:
    """Write the file with mode 0600, replacing an older one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, msgspec.json.encode(spec), 0o600)


def read_spec(path: Path) -> ChildSpec:
    """Read the file that the RaaS wrote."""
    return msgspec.json.decode(path.read_bytes(), type=ChildSpec)


def child_environment(token: str, own: Mapping[str, str]) -> dict[str, str]:
    """Our environment and what is the child's own. Of ``token``, that of the process, the child gets the secret that the
    components of the run share, and no rights."""
    return {**os.environ, **own, TOKEN_VARIABLE: only_shared(token)}
