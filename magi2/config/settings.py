"""The deployment's environment variables, `MAGI2_*` and `AIRFLOW_HOME`; the only place that reads them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from magi2.config.input_roots import InputPrefix, parse_input_roots
from magi2.config.installed import installed_folder
from magi2.config.strict import nearest
from magi2.errors import ConfigError
from magi2.inputs.limits import MAX_NAME_CHARS

WEIGHTS_HINT = (
    "point it at the published weights, at the repository's examples/demo_checkpoint for --profile demo, "
    "or make random ones for --profile tiny: magi2 checkpoint make-tiny DIR --seed 1"
)
_TEST_PREFIX = "MAGI2_TEST_"
_PATHS = (
    *("ckpt_root", "configs", "inbox", "airflow_home", "label_font", "quality"),
    *("c2pa_certificate", "c2pa_key", "c2pa_trust"),
)
_NUMBERS = {
    **dict.fromkeys(("lease_days", "quarantine_days"), "number of days"),
    **dict.fromkeys(("pe_timeout_s", "store_wait_s", "c2pa_timeout_s"), "number of seconds"),
    "price_per_accelerator_hour": "price",
    "card_memory_gib": "number of GiB",
}


def _default_store() -> str:
    data_home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return str(Path(data_home) / "magi2" / "store")


@dataclass(frozen=True)
class Settings:
    """What a deployment decides; of a clip's bits only its marks depend on it. Secrets never show in `repr`."""

    ckpt_root: Path | None = None
    """Folder with preview/, refiner/, text_encoder/, vae/, turbo_vae/, stable-audio-open-1.0/ (MAGI2_CKPT_ROOT)."""
    store: str = field(default_factory=_default_store)
    """Where artifacts live: a folder or an s3:// address (MAGI2_STORE)."""
    store_wait_s: float = 600.0
    """Seconds that a render waits for a store which is away, before a try of its task is spent (MAGI2_STORE_WAIT_S)."""
    catalog: str | None = field(default=None, repr=False)
    """SQLAlchemy URL of the catalog's database; by default a SQLite file in a local store (MAGI2_CATALOG)."""
    inbox: Path | None = None
    """Folder where new batch files are dropped, each of which starts a run (MAGI2_INBOX)."""
    input_roots: tuple[Path | InputPrefix, ...] = ()
    """Further folders from which runs in Airflow read batch files, prompts and images, and prefixes of buckets, from
    which commands read them too, see `magi2.config.input_roots` (MAGI2_INPUT_ROOTS)."""
    airflow_home: Path = field(default_factory=lambda: Path.home() / "airflow")
    """Airflow's own folder, from which no input is read (AIRFLOW_HOME)."""
    configs: Path = field(default_factory=lambda: installed_folder("configs"))
    """Folder with models/, profiles/ and negative_prompt.txt (MAGI2_CONFIGS)."""
    airflow_url: str | None = None
    """Address of Airflow's API server, for `magi2 batch` and `magi2 rerun` (MAGI2_AIRFLOW_URL)."""
    airflow_user: str | None = None
    """Who logs in there; unset where every visitor is an admin (MAGI2_AIRFLOW_USER)."""
    airflow_password: str | None = field(default=None, repr=False)
    """The password (MAGI2_AIRFLOW_PASSWORD)."""
    quality: Path | None = None
    """YAML file with other thresholds of defects than those by default, see docs/quality.md (MAGI2_QUALITY)."""
    device: str | None = None
    """cuda, musa or cpu, optionally with an index; by default what the machine has (MAGI2_DEVICE)."""
    ffmpeg: str | None = None
    """Path of the ffmpeg program; by default the system's, else imageio-ffmpeg's (MAGI2_FFMPEG)."""
    content_producer: str = ""
    """Who the delivered files name as the producer of their content (MAGI2_CONTENT_PRODUCER)."""
    label_font: Path | None = None
    """Font file of visible labels; by default that of Debian's fonts-noto-cjk (MAGI2_LABEL_FONT)."""
    watermarks: tuple[str, ...] = ()
    """Names of watermarks that profiles may ask for (MAGI2_WATERMARKS, separated by commas)."""
    deterministic: bool = False
    """Bit-equal reruns on one kind of accelerator, at some cost in speed (MAGI2_DETERMINISTIC)."""
    layout: str | None = None
    """How preview and refiner are spread over ranks, as in sp8.cfg1.ep4; by default all accelerators (MAGI2_LAYOUT)."""
    card_memory_gib: float | None = None
    """Memory of one accelerator of the hosts that render: with a layout, plans refuse what is too large for it
    (MAGI2_CARD_MEMORY_GIB)."""
    snapshot_every: int = 10
    """Denoising steps between two snapshots, which are what a kill costs at most; 0 for none (MAGI2_SNAPSHOT_EVERY)."""
    preview_pictures: bool = True
    """Whether a clip at work is shown at each snapshot of its preview (MAGI2_PREVIEW_PICTURES)."""
    lease_days: float = 7.0
    """A batch without a sign of life for so long holds its artifacts no more (MAGI2_LEASE_DAYS)."""
    quarantine_days: float = 30.0
    """What was damaged is kept aside for so long (MAGI2_QUARANTINE_DAYS)."""
    price_per_accelerator_hour: float | None = None
    """What an hour of one accelerator costs; without it no cost is told (MAGI2_PRICE_PER_ACCELERATOR_HOUR)."""
    currency: str = "USD"
    """Its currency, also that of budgets (MAGI2_CURRENCY)."""
    notify_conn_id: str | None = None
    """Airflow connection of a webhook that is told when a batch ends or needs somebody (MAGI2_NOTIFY_CONN_ID)."""
    delivery_targets: str | None = None
    """Where finished clips are brought, by name: JSON, see `magi2.delivery.targets` (MAGI2_DELIVERY_TARGETS)."""
    delivery_secrets: str | None = field(default=None, repr=False)
    """Credentials of such targets, by name: JSON (MAGI2_DELIVERY_SECRETS)."""
    pe_base_url: str | None = None
    """OpenAI-compatible endpoint for prompt enhancement (MAGI2_PE_BASE_URL)."""
    pe_model: str = "gemini-3.1-pro-preview"
    """Model name asked of that endpoint (MAGI2_PE_MODEL)."""
    pe_api_key: str | None = field(default=None, repr=False)
    """Its credential (MAGI2_PE_API_KEY)."""
    pe_timeout_s: float = 180.0
    """Bound on one enhancement, all attempts and pauses together (MAGI2_PE_TIMEOUT_S)."""
    c2pa_certificate: Path | None = None
    """PEM file of the certificate that signs delivered clips, then those above it (MAGI2_C2PA_CERTIFICATE)."""
    c2pa_key: Path | None = None
    """PEM file of its private key (MAGI2_C2PA_KEY)."""
    c2pa_command: tuple[str, ...] = field(default=(), repr=False)
    """Program and arguments that sign in place of a key: a JSON array of text (MAGI2_C2PA_COMMAND)."""
    c2pa_timeout_s: float = 30.0
    """Seconds that it may take for one signature (MAGI2_C2PA_TIMEOUT_S)."""
    c2pa_timestamp_url: str | None = field(default=None, repr=False)
    """Address of a time-stamp server (RFC 3161) that is asked for each signature (MAGI2_C2PA_TIMESTAMP_URL)."""
    c2pa_trust: Path | None = None
    """PEM file of the certificates by which `magi2 marks` trusts signatures (MAGI2_C2PA_TRUST)."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Settings:
        """Settings from `MAGI2_*`. Raises ConfigError on an unknown name (naming the nearest) or a bad value."""
        known = {_variable(name): name for name in cls.__dataclass_fields__}
        values: dict[str, object] = {}
        for variable, text in environment.items():
            is_ours = variable.startswith("MAGI2_") and not variable.startswith(_TEST_PREFIX)
            if not text or not (is_ours or variable in known):
                continue
            if variable not in known:
                raise ConfigError(f"environment: unknown variable {variable}", hint=nearest(variable, known))
            values[known[variable]] = _parse(variable, known[variable], text)
        return cls(**values)  # type: ignore[arg-type]

    def checkpoint_root(self) -> Path:
        """The weights' folder. Raises ConfigError when it is not set or is no folder."""
        if self.ckpt_root is None:
            raise ConfigError(
                "no model weights: MAGI2_CKPT_ROOT is not set",
                hint=WEIGHTS_HINT,
            )
        if not self.ckpt_root.is_dir():
            raise ConfigError(f"no model weights: MAGI2_CKPT_ROOT={self.ckpt_root} is not a folder", hint=WEIGHTS_HINT)
        return self.ckpt_root


def _variable(name: str) -> str:
    return "AIRFLOW_HOME" if name == "airflow_home" else f"MAGI2_{name.upper()}"


def _parse(variable: str, name: str, text: str) -> object:
    if name in _PATHS:
        return Path(text).expanduser().absolute()
    if name == "c2pa_command":
        return _argument_list(variable, text)
    if name == "input_roots":
        return parse_input_roots(variable, text)
    if name == "watermarks":
        return tuple(entry.strip() for entry in text.split(",") if entry.strip())
    if name in ("deterministic", "preview_pictures"):
        return _switch(variable, text)
    if name == "snapshot_every":
        return _steps(variable, text)
    if name in _NUMBERS:
        return _number(variable, text, _NUMBERS[name])
    if name == "content_producer":
        return _line(variable, text)
    return text


def _switch(variable: str, text: str) -> bool:
    if text.lower() not in ("0", "1", "true", "false"):
        raise ConfigError(f"environment: {variable}={text!r} is neither 0 nor 1")
    return text.lower() in ("1", "true")


def _steps(variable: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"environment: {variable}={text!r} is not a number of steps")
    return int(text)


def _line(variable: str, text: str) -> str:
    """A name that may stand in a file or a table. Raises ConfigError."""
    if not text.isprintable() or len(text) > MAX_NAME_CHARS:
        raise ConfigError(f"environment: {variable} is no name of at most {MAX_NAME_CHARS} characters on one line")
    return text


def _argument_list(variable: str, text: str) -> tuple[str, ...]:
    """A program and its arguments. Raises ConfigError, which does not quote them."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not found or not all(isinstance(part, str) for part in found):
        hint = 'as in ["/usr/local/bin/sign", "--slot", "7"]: no shell reads it'
        raise ConfigError(f"environment: {variable} is no JSON array of a program and its arguments", hint=hint)
    return tuple(found)


def _number(variable: str, text: str, what: str) -> float:
    """A finite number from 0. Raises ConfigError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ConfigError(f"environment: {variable}={text!r} is no {what}")
    return value
