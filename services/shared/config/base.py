"""What the models of all sections share."""

from __future__ import annotations

from typing import Annotated

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


class TlsConfig(Model):
    """Mutual TLS: each side shows a certificate, and trusts those of one authority."""

    certificate: str = pydantic.Field(description="PEM file of this service's certificate.")
    key: str = pydantic.Field(description="PEM file of its private key.")
    authority: str = pydantic.Field(description="PEM file of the certificates that are trusted.")
