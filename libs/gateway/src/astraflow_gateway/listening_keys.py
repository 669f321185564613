"""The keys by which the workflows with a gateway say where it listens."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from astraflow_core.config.models import ConfigModel
from astraflow_core.config.or_none import OrNone
from astraflow_core.errors import UserError
from astraflow_gateway.listening import Listening


class GatewayKeys(ConfigModel):
    """Keys of :class:`~astraflow_gateway.listening.Listening`."""

    bind: str = Field("127.0.0.1", description="Address to which the gateway binds.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        0, description="Port of the gateway; 0: any free port."
    )
    address: OrNone[str] = Field(
        None,
        description="Host name under which agents reach the RaaS; 'none': bind, or the host's own name.",
    )
    certificate: OrNone[Path] = Field(
        None, description="Certificate of the gateway with its chain (PEM); 'none': no TLS."
    )
    private_key: OrNone[Path] = Field(None, description="Key of the certificate (PEM).")
    allow_plain_text: bool = Field(
        False, description="Listen beyond loopback without TLS; traffic can be read on the network."
    )

    @property
    def listening(self) -> Listening:
        """Where the gateway listens."""
        return Listening(
            self.bind,
            self.port,
            self.address or "",
            self.certificate,
            self.private_key,
            self.allow_plain_text,
        )

    @model_validator(mode="after")
    def _listens_safely(self) -> Self:
        try:
            _ = self.listening
        except UserError as error:
            raise ValueError(str(error)) from error
        return self
