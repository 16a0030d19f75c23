"""What the models of all sections share."""

from __future__ import annotations

from typing import Annotated, Literal

import pydantic

MEBIBYTE = 1 << 20

PositiveInt = Annotated[int, pydantic.Field(ge=1)]
NonNegativeInt = Annotated[int, pydantic.Field(ge=0)]
NonNegative = Annotated[float, pydantic.Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, pydantic.Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, pydantic.Field(ge=0, le=1)]
Port = Annotated[int, pydantic.Field(ge=0, le=65535)]


class Model(pydantic.BaseModel):
    """Frozen; a key that it does not have is refused."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")


ClientRole = Literal["actor", "learner"]


class TlsConfig(Model):
    """Mutual TLS: each side shows a certificate, and trusts those of one authority.

    Renewed files are taken up without a restart.
    """

    certificate: str = pydantic.Field(description="PEM file of this service's certificate.")
    key: str = pydantic.Field(description="PEM file of its private key.")
    authority: str = pydantic.Field(description="PEM file of the certificates that are trusted.")
    clients: dict[ClientRole, tuple[str, ...]] = pydantic.Field(
        default={},
        description="Of a server: the names (alternative or common, `*` stands for anything) in the"
        " certificates of actors and of learners. Then only actors may join and act, and only"
        " learners may call replay. Default: who has a certificate of the authority may do both.",
    )
