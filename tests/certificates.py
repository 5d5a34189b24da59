"""TLS contexts for servers with a self-signed certificate."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def with_certificate(name: str, directory: Path) -> tuple[ssl.SSLContext, Path]:
    """Return the TLS context of a server with this name, and the certificate that its clients must trust."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(
        [
            openssl,
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-keyout",
            str(key),
            "-out",
            str(certificate),
            "-subj",
            f"/CN={name}",
            "-addext",
            f"subjectAltName=DNS:{name}",
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context, certificate
