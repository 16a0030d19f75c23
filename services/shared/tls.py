"""Mutual TLS: certificates that are read again when they are renewed, and whose they are.

`rpc` uses it for channels and servers, servicers to learn whether a client may call a method.
"""

from __future__ import annotations

import fnmatch
import logging
import pathlib
from typing import Any

import grpc

from services.shared.config import ClientRole, TlsConfig
from services.shared.status import StatusError

_log = logging.getLogger(__name__)


class Certificates:
    """The files of one side, read again when they have changed."""

    def __init__(self, tls: TlsConfig) -> None:
        """Remembers where they are; nothing is read yet."""
        self._paths = [pathlib.Path(p) for p in (tls.key, tls.certificate, tls.authority)]
        self._read: tuple[tuple[int, int, int], ...] = ()

    def renewed(self) -> tuple[bytes, bytes, bytes] | None:
        """Key, certificate and authority as PEM; None if they are as they were the last time.

        Raises:
          OSError: A file cannot be read.
        """
        stats = [path.stat() for path in self._paths]
        state = tuple((s.st_mtime_ns, s.st_ino, s.st_size) for s in stats)
        if state == self._read:
            return None
        key, certificate, authority = (path.read_bytes() for path in self._paths)
        self._read = state
        return key, certificate, authority

    def renewed_or_none(self) -> tuple[bytes, bytes, bytes] | None:
        """`renewed`; files that cannot be read are logged, and those before stay in use."""
        try:
            return self.renewed()
        except OSError as error:
            _log.error("certificate cannot be read again: %s", error)
            return None

    def read(self) -> tuple[bytes, bytes, bytes]:
        """Key, certificate and authority as PEM.

        Raises:
          OSError: A file cannot be read.
        """
        self._read = ()
        pems = self.renewed()
        assert pems is not None, "nothing was read before"
        return pems


def server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    """Of a server that asks its clients for a certificate of the authority.

    Renewed files are taken up by the next connection.

    Raises:
      OSError: A file cannot be read.
    """
    certificates = Certificates(tls)

    def fetch() -> Any:
        """Called by gRPC at each handshake; None: as before."""
        pems = certificates.renewed_or_none()
        return None if pems is None else _server_configuration(*pems)

    return grpc.dynamic_ssl_server_credentials(
        _server_configuration(*certificates.read()), fetch, require_client_authentication=True
    )


def channel_credentials(pems: tuple[bytes, bytes, bytes]) -> grpc.ChannelCredentials:
    """Of a client, from what `Certificates` has read."""
    key, certificate, authority = pems
    return grpc.ssl_channel_credentials(authority, key, certificate)


def authorize(context: Any, tls: TlsConfig | None, role: ClientRole, method: str) -> None:
    """Lets only clients of one role go on, if the configuration says who they are.

    Args:
      context: Of the call.
      tls: The server's.
      role: Whose method it is.
      method: For the message.

    Raises:
      StatusError: PERMISSION_DENIED, with the client's names and those that are allowed.
    """
    if tls is None or not tls.clients:
        return
    allowed = tls.clients.get(role, ())
    names = client_names(context)
    if not any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in allowed):
        raise StatusError(
            grpc.StatusCode.PERMISSION_DENIED,
            f"{method} is for {role}s, whose certificates have one of the names {list(allowed)}"
            f" (tls.clients); this client's has {names}",
        )


def client_names(context: Any) -> list[str]:
    """The alternative names and the common name of a client's certificate."""
    identity = context.auth_context()
    keys = ("x509_subject_alternative_name", "x509_common_name")
    found = {name.decode(errors="replace") for key in keys for name in identity.get(key, ())}
    return sorted(found - {""})


def _server_configuration(key: bytes, certificate: bytes, authority: bytes) -> Any:
    return grpc.ssl_server_certificate_configuration([(key, certificate)], authority)
