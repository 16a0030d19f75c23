"""Certificates for tests, as files that can be renewed."""

from __future__ import annotations

import pathlib

import trustme

from services.shared import config


def write_certificate(folder: pathlib.Path, authority: trustme.CA, *names: str) -> config.TlsConfig:
    """Makes a certificate of 127.0.0.1 and other names, or a new one in the place of an old one."""
    folder.mkdir(parents=True, exist_ok=True)
    certificate = authority.issue_cert("127.0.0.1", *names)
    certificate.private_key_pem.write_to_path(folder / "tls.key")
    certificate.cert_chain_pems[0].write_to_path(folder / "tls.crt")
    authority.cert_pem.write_to_path(folder / "ca.crt")
    return config.TlsConfig(
        certificate=str(folder / "tls.crt"),
        key=str(folder / "tls.key"),
        authority=str(folder / "ca.crt"),
    )
