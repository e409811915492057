"""Signatures over bytes, by a private key in a file or by a command, in the forms that content credentials have.

No message here quotes a key, or what a command was given or says. Needs the extra `c2pa`, which brings cryptography.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from magi2.errors import ConfigError, InfrastructureError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

_PEM_LIMIT_BYTES = 2**20
_CURVES = {
    "secp256r1": ("ES256", "SHA256", 32),
    "secp384r1": ("ES384", "SHA384", 48),
    "secp521r1": ("ES512", "SHA512", 66),
}
"""C2PA's algorithm, the hash that goes with it, and the bytes of one half of a signature, by the name of a curve."""

Sign = Callable[[bytes], bytes]


def read_pem(path: Path, variable: str) -> bytes:
    """A PEM file that `variable` names. Raises ConfigError."""
    try:
        with path.open("rb") as stream:
            content = stream.read(_PEM_LIMIT_BYTES)
    except OSError as error:
        raise ConfigError(f"{variable}={path}: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise ConfigError(f"{variable}={path}: is no PEM file")
    return content


def signing_chain(path: Path) -> list[Certificate]:
    """The certificates of a PEM file and nothing else that is in it; the first is valid today. Raises ConfigError."""
    from cryptography import x509

    try:
        chain = x509.load_pem_x509_certificates(read_pem(path, "MAGI2_C2PA_CERTIFICATE"))
    except ValueError:
        raise ConfigError("MAGI2_C2PA_CERTIFICATE: there is no certificate that can be read") from None
    first, last = chain[0].not_valid_before_utc, chain[0].not_valid_after_utc
    if not first <= (now := datetime.now(UTC)) <= last:
        said = f"is valid from {first.date()} to {last.date()}, today is {now.date()}"
        raise ConfigError(f"MAGI2_C2PA_CERTIFICATE: {said}")
    return chain


def pem_text(chain: Iterable[Certificate]) -> str:
    """Certificates as the text of a PEM file."""
    from cryptography.hazmat.primitives.serialization import Encoding

    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in chain)


def signature_scheme(certificate: Certificate, sign: Sign) -> tuple[str, Sign]:
    """C2PA's algorithm for the certificate's key, and what gives signatures in the form that C2PA has for it.

    Raises: ConfigError for another kind of key; the signing, for a signature that is none.
    """
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

    key = certificate.public_key()
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
        algorithm, _, size = _CURVES[key.curve.name]
        return algorithm, lambda data: _halves(sign(data), size)
    if isinstance(key, rsa.RSAPublicKey):
        return "PS256", sign
    if isinstance(key, ed25519.Ed25519PublicKey):
        return "ED25519", sign
    raise ConfigError("MAGI2_C2PA_CERTIFICATE: its key is none of P-256, P-384, P-521, RSA and Ed25519")


def _halves(signature: bytes, size: int) -> bytes:
    """A signature of an elliptic curve as C2PA has it, from the DER that programs give."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    try:
        halves = decode_dss_signature(signature)
        return b"".join(half.to_bytes(size, "big") for half in halves)
    except (ValueError, OverflowError):
        raise ConfigError("MAGI2_C2PA_COMMAND: what it gave is no signature in DER") from None


def key_signing(path: Path, certificate: Certificate) -> Sign:
    """What signs by a key in a PEM file. Raises ConfigError when it is not the certificate's."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

    try:
        key: Any = serialization.load_pem_private_key(read_pem(path, "MAGI2_C2PA_KEY"), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"MAGI2_C2PA_KEY={path}: is no private key in PEM without a password") from None
    if key.public_key() != certificate.public_key():
        raise ConfigError("MAGI2_C2PA_KEY is not the key of MAGI2_C2PA_CERTIFICATE")
    if isinstance(key, ec.EllipticCurvePrivateKey):
        hashed = getattr(hashes, _CURVES[key.curve.name][1])() if key.curve.name in _CURVES else hashes.SHA256()
        return lambda data: key.sign(data, ec.ECDSA(hashed))  # type: ignore[no-any-return]
    if isinstance(key, rsa.RSAPrivateKey):
        padded = padding.PSS(padding.MGF1(hashes.SHA256()), salt_length=hashes.SHA256.digest_size)
        return lambda data: key.sign(data, padded, hashes.SHA256())  # type: ignore[no-any-return]
    return lambda data: key.sign(data)  # type: ignore[no-any-return]


def command_signing(command: tuple[str, ...], limit_s: float) -> Sign:
    """What asks a program for signatures: the bytes to sign on its stdin, the signature on its stdout; no shell.

    The signing raises ConfigError when it does not start, InfrastructureError when it fails or takes too long.
    """
    program = Path(command[0]).name

    def sign(data: bytes) -> bytes:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"MAGI2_C2PA_COMMAND: {program} does not start: {error.strerror}") from None
        try:
            signature, _ = process.communicate(data, timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise InfrastructureError(f"MAGI2_C2PA_COMMAND: {program} gave no signature in {limit_s:g} s") from None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # with what it started
                process.communicate()
        if process.returncode or not signature:
            what = f"ended with {process.returncode}" if process.returncode else "gave no signature"
            raise InfrastructureError(f"MAGI2_C2PA_COMMAND: {program} {what}")
        return signature

    return sign
