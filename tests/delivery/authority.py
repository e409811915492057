"""A certification authority of a test's own: certificates that may sign content credentials, and their keys."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SIGNER = "test signer"
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Signing:
    """PEM files: the signer's certificate and its authority's, its key, and the authority's certificate alone."""

    certificate: Path
    key: Path
    authority: Path

    @property
    def environment(self) -> dict[str, str]:
        """What tells a deployment to sign, and to trust its own signatures."""
        return {
            "MAGI2_C2PA_CERTIFICATE": str(self.certificate),
            "MAGI2_C2PA_KEY": str(self.key),
            "MAGI2_C2PA_TRUST": str(self.authority),
        }


def make_signing(
    folder: Path,
    key: Any = None,
    *,
    days: int = 30,
    usage: x509.ObjectIdentifier | None = ExtendedKeyUsageOID.EMAIL_PROTECTION,
) -> Signing:
    """A certificate for `key`, by default a new one of P-256, which an authority signed; valid for `days`.

    Without `usage` it is for nothing in particular, and so not for content credentials.
    """
    root, key = ec.generate_private_key(ec.SECP256R1()), key or ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("test authority", "test authority", root, root, ca=True)
    certificate = _certificate(SIGNER, "test authority", key, root, days=days, usage=usage)
    made = Signing(folder / "signer.pem", folder / "signer.key", folder / "authority.pem")
    folder.mkdir(exist_ok=True)
    made.certificate.write_bytes(_pem(certificate) + _pem(authority))
    made.authority.write_bytes(_pem(authority))
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, *plain))
    return made


def _certificate(
    subject: str,
    issuer: str,
    key: Any,
    root: Any,
    *,
    ca: bool = False,
    days: int = 30,
    usage: x509.ObjectIdentifier | None = None,
) -> x509.Certificate:
    now = datetime.now(UTC)
    last = now + days * _DAY
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, last) - _DAY)
        .not_valid_after(last)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(_key_usage(ca), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), critical=False)
    )
    if usage:
        is_critical = usage == ExtendedKeyUsageOID.TIME_STAMPING
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=is_critical)
    return builder.sign(root, hashes.SHA256())


def _name(name: str) -> x509.Name:
    parts = {NameOID.ORGANIZATION_NAME: "tests", NameOID.COMMON_NAME: name}
    return x509.Name([x509.NameAttribute(*part) for part in parts.items()])


def _key_usage(ca: bool) -> x509.KeyUsage:
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    never = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(digital_signature=True, key_cert_sign=ca, crl_sign=ca, **never)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
