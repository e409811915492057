"""Signed content credentials (C2PA) of a delivered copy: made with the deployment's certificate, and read back.

They say that the clip was created by a trained model, and by whom; stored bytes are never signed, since no two
signatures are equal. The key stays in this process or behind a command: no message here quotes a key, what a command
says, or an address. Needs the extra `c2pa`, which is loaded when first used.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Literal

from magi2 import __version__
from magi2.config.settings import Settings
from magi2.delivery.signing import (
    Sign,
    command_signing,
    key_signing,
    pem_text,
    read_pem,
    signature_scheme,
    signing_chain,
)
from magi2.errors import ConfigError, InfrastructureError, Magi2Error, MissingToolError, in_one_line
from magi2.files import disk_errors
from magi2.media.marks.read import FIRST_BOXES
from magi2.media.marks.xmp import TRAINED

MP4 = "video/mp4"
_NO_NETWORK = {"remote_manifest_fetch": False, "ocsp_fetch": False}


@dataclass(frozen=True)
class Signature:
    """What the content credentials of a file are worth.

    `none` are there, they are `invalid` (and `problems` say why), they are `valid` for the bytes that they cover, or
    they are `trusted`: valid, by a certificate below one that was given. `by` is the name in the certificate, `at` when
    it was signed by the word of a time-stamp server, if one was asked.
    """

    state: Literal["none", "invalid", "valid", "trusted"]
    by: str | None = None
    at: str | None = None
    problems: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether the file is signed and what is covered is as it was."""
        return self.state in ("valid", "trusted")


class Signer:
    """Signs copies of clips as a deployment's MAGI2_C2PA_* say."""

    def __init__(self, chain: str, algorithm: str, sign: Sign, timestamp_url: str | None = None) -> None:
        self._chain, self._algorithm, self._sign = chain, algorithm, sign
        self._timestamp_url = timestamp_url

    @classmethod
    def of(cls, settings: Settings) -> Signer | None:
        """The deployment's signer, or None where it asks for no signatures.

        Raises: ConfigError for settings by which nothing can be signed, MissingToolError without the extra.
        """
        if not wants_signatures(settings):
            return None
        if settings.c2pa_certificate is None:
            raise ConfigError("clips cannot be signed: MAGI2_C2PA_CERTIFICATE is not set")
        if (settings.c2pa_key is None) == (not settings.c2pa_command):
            raise ConfigError("clips cannot be signed: set one of MAGI2_C2PA_KEY and MAGI2_C2PA_COMMAND")
        if not (settings.c2pa_timestamp_url or "http://").startswith(("http://", "https://")):
            raise ConfigError("clips cannot be signed: MAGI2_C2PA_TIMESTAMP_URL is no http address")
        _library()
        chain = signing_chain(settings.c2pa_certificate)
        if settings.c2pa_key is not None:
            sign = key_signing(settings.c2pa_key, chain[0])
        else:
            sign = command_signing(settings.c2pa_command, settings.c2pa_timeout_s)
        return cls(pem_text(chain), *signature_scheme(chain[0], sign), settings.c2pa_timestamp_url)

    def sign(self, source: Path, target: Path) -> None:
        """Write a signed copy of the mp4 `source` to `target`, of which nothing stays when that fails.

        Raises: ConfigError when the certificate is not for this, InfrastructureError when command, time-stamp server
        or disk fail.
        """
        try:
            with disk_errors(target), source.open("rb") as read, target.open("w+b") as write:
                self._sign_stream(MP4, read, write)
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    def self_test(self) -> str:
        """Sign a tiny picture in memory and say by whom. Raises: as `sign` does."""
        from PIL import Image

        plain, signed = io.BytesIO(), io.BytesIO()
        Image.new("RGB", (16, 16)).save(plain, "jpeg")
        plain.seek(0)
        found = self._sign_stream("image/jpeg", plain, signed)
        stamped = ", with time stamps" if self._timestamp_url else ""
        return f"clips are signed by {found.by or 'a certificate without a name'}, {self._algorithm}{stamped}"

    def _sign_stream(self, kind: str, source: IO[bytes], target: IO[bytes]) -> Signature:
        c2pa, failure = _library(), list[Exception]()

        def sign(data: bytes) -> bytes:
            try:
                return self._sign(data)
            except Exception as error:
                failure.append(error)  # the library would only say that something failed
                return b""

        algorithm = c2pa.C2paSigningAlg[self._algorithm]
        try:
            with (
                c2pa.Signer.from_callback(sign, algorithm, self._chain, self._timestamp_url) as signer,
                _context({"verify": {"verify_after_sign": False, **_NO_NETWORK}}) as context,
                c2pa.Builder(_claim(kind), context=context) as builder,
            ):
                builder.sign(signer, kind, source, target)
        except c2pa.C2paError as error:
            if failure:
                raise failure[0] from None
            raise self._refusal(in_one_line(error)) from None
        target.seek(0)
        found = _read(kind, target)
        if not found.is_good:
            raise ConfigError(f"clips cannot be signed: the signature came out bad: {', '.join(found.problems)}")
        return found

    def _refusal(self, said: str) -> Magi2Error:
        """The error for what the library said, which quotes the time-stamp server's address."""
        if self._timestamp_url and ("http" in said or "stamp" in said.lower()):
            return InfrastructureError("clips cannot be signed: MAGI2_C2PA_TIMESTAMP_URL gives no time stamp")
        return ConfigError(f"clips cannot be signed: {said}")


def wants_signatures(settings: Settings) -> bool:
    """Whether the deployment says by any of its settings that delivered clips are signed."""
    asked = settings.c2pa_certificate, settings.c2pa_key, settings.c2pa_command, settings.c2pa_timestamp_url
    return any(asked)


def check_signing(settings: Settings) -> str | None:
    """Who will sign clips, after a trial; None where nobody is asked to. Raises: as `Signer.of` and `sign` do."""
    signer = Signer.of(settings)
    return signer.self_test() if signer else None


def read_signature(path: Path, trust: Path | None = None) -> Signature:
    """What the content credentials of a file are worth, `none` for one that is no mp4; nobody else is asked.

    `trust` is a PEM file of certificates whose signers are trusted.
    Raises: MissingToolError without the extra, ConfigError for a bad `trust`.
    """
    anchors = read_pem(trust, "MAGI2_C2PA_TRUST").decode() if trust else None
    with disk_errors(path), path.open("rb") as stream:
        is_mp4 = stream.read(8)[4:] in FIRST_BOXES
        stream.seek(0)
        return _read(MP4, stream, anchors) if is_mp4 else Signature("none")


def _read(kind: str, stream: IO[bytes], anchors: str | None = None) -> Signature:
    c2pa = _library()
    settings: dict[str, Any] = {"verify": {"verify_trust": anchors is not None, **_NO_NETWORK}}
    if anchors is not None:
        settings["trust"] = {"trust_anchors": anchors}
    try:
        with _context(settings) as context, c2pa.Reader(kind, stream, context=context) as reader:
            active = reader.get_active_manifest() or {}
            results = (reader.get_validation_results() or {}).get("activeManifest") or {}
            state = str(reader.get_validation_state())
    except c2pa.C2paError.ManifestNotFound:
        return Signature("none")
    except c2pa.C2paError as error:
        return Signature("invalid", problems=(in_one_line(error)[:200],))
    info = active.get("signature_info") or {}
    problems = tuple(str(each.get("code")) for each in results.get("failure", ()))
    states: dict[str, Literal["valid", "trusted"]] = {"Valid": "valid", "Trusted": "trusted"}
    return Signature(states.get(state, "invalid"), info.get("common_name"), info.get("time"), problems)


def _claim(kind: str) -> dict[str, Any]:
    """What is signed: that a trained model made this, under the name and version of this program."""
    created = {
        "action": "c2pa.created",
        "digitalSourceType": TRAINED,
        "softwareAgent": {"name": "MAGI-2 Preview"},
    }
    return {
        "claim_generator_info": [{"name": "magi2", "version": __version__}],
        "format": kind,
        "assertions": [{"label": "c2pa.actions.v2", "data": {"actions": [created]}}],
    }


@contextmanager
def _context(settings: dict[str, Any]) -> Iterator[Any]:
    c2pa = _library()
    with c2pa.Settings.from_dict(settings) as chosen, c2pa.Context(chosen) as context:
        yield context


def _library() -> Any:
    """The library. Raises MissingToolError without it."""
    if find_spec("c2pa") is None:
        raise MissingToolError("content credentials need c2pa-python", hint="pip install 'magi2[c2pa]'")
    import c2pa

    return c2pa
