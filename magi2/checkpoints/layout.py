"""Where each component lies in a weights folder of the published layout, and its fingerprint; torch-free."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from magi2.artifacts.fingerprint import checkpoint_fingerprint
from magi2.artifacts.recipe import canonical_json, sha256_text
from magi2.checkpoints.headers import header_of, json_object
from magi2.errors import CheckpointError
from magi2.files import disk_errors


@dataclass(frozen=True)
class Component:
    """One network: its folder below the root, and glob patterns of the files that decide its output."""

    name: str
    folder: str
    patterns: tuple[str, ...]


COMPONENTS = {
    component.name: component
    for component in (
        Component("text_encoder", "text_encoder", ("config.json", "tokenizer*", "vocab*", "merges*", "*.safetensors")),
        Component("preview", "preview", ("*.safetensors",)),
        Component("refiner", "refiner", ("*.safetensors",)),
        Component("video_vae", "vae", ("Wan2.2_VAE.pth",)),
        Component("turbo_vae", "turbo_vae", ("TurboV3-Wan22-TinyShallow_7_7.json", "checkpoint.ckpt")),
        Component("audio_vae", "stable-audio-open-1.0", ("model_config.json", "model.safetensors")),
    )
}


HOLLOW_NAME = "HOLLOW.json"
"""The file by which a folder without data says so; its weight files say it in their headers, too."""
HOLLOW_KEY = "hollow"


QUANTISED_NAME = "quantised.json"
"""The file that `magi2 checkpoint quantise` writes last into the folder of a preview that it made."""
SOURCE_KEY = "magi2_source"
"""In the metadata of each file that it made: the fingerprint of the weights that they were made of."""


@dataclass(frozen=True)
class QuantisedRecord:
    """What weights made by `magi2 checkpoint quantise` say of themselves: the format, how their scales lie, and the
    fingerprints of what they were made of and of their own files.
    """

    weights: str
    scales: str
    source: str
    content: str

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def of(cls, folder: Path) -> QuantisedRecord | None:
        """The record of a component's folder, None where it has none. Raises: CheckpointError when it is spoilt."""
        path = folder / QUANTISED_NAME
        if not path.is_file():
            return None
        try:
            return cls(**{name: str(value) for name, value in (json_object(path) or {}).items()})
        except TypeError as error:
            raise CheckpointError(f"{path}: is no record of quantised weights", hint=_QUANTISE_AGAIN) from error


_QUANTISE_AGAIN = "make it again by magi2 checkpoint quantise"


def _cache() -> Path:
    """Where digests are remembered when the weights lie on a read-only mount: hashing 307 GB takes minutes."""
    return Path.home() / ".cache" / "magi2" / "fingerprints"


class CheckpointFolder(Mapping[str, str]):
    """A weights folder; as a mapping it gives each component's fingerprint, computed on first use.

    Weights made by `magi2 checkpoint quantise` have the fingerprint of those that they were made of, so that a recipe
    is the same whether they are quantised as they are loaded or before. Raises: CheckpointError when they are not as
    they were made.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._fingerprints: dict[str, str] = {}

    def folder(self, component: str) -> Path:
        """Folder of a component."""
        return self.root / COMPONENTS[component].folder

    def files(self, component: str) -> list[Path]:
        """The files that decide a component's output.

        Raises: CheckpointError naming the first that is missing, InfrastructureError when the disk is away.
        """
        folder, files = self.folder(component), []
        for pattern in COMPONENTS[component].patterns:
            with disk_errors(folder, CheckpointError):
                found = sorted(folder.glob(pattern))
            if not found and pattern not in ("vocab*", "merges*"):
                raise CheckpointError(
                    f"{component}: {folder / pattern} is missing",
                    hint="MAGI2_CKPT_ROOT must hold the published layout, as examples/demo_checkpoint does; "
                    "see magi2 checkpoint verify",
                )
            files += found
        return files

    def require(self, components: Iterable[str]) -> None:
        """Check that the files of `components` are there. Raises CheckpointError."""
        for component in components:
            self.files(component)

    def is_hollow(self, component: str) -> bool:
        """Whether a component has names and sizes alone, as `magi2 checkpoint make-hollow` makes them."""
        folder = self.folder(component)
        if (self.root / HOLLOW_NAME).exists():
            return True
        headers = (header_of(path).get("__metadata__") for path in sorted(folder.glob("*.safetensors")))
        return any(isinstance(metadata, dict) and HOLLOW_KEY in metadata for metadata in headers)

    def require_filled(self, components: Iterable[str]) -> None:
        """Raise CheckpointError when one of `components` is hollow: nothing can be rendered from it."""
        for component in components:
            if self.is_hollow(component):
                raise CheckpointError(
                    f"{component}: {self.folder(component)} is hollow: names and sizes of weights without their values",
                    hint="it serves plans and checks alone; set MAGI2_CKPT_ROOT to the published weights to render",
                )

    def __getitem__(self, component: str) -> str:
        if component not in self._fingerprints:
            self._fingerprints[component] = self._fingerprint(component)
        return self._fingerprints[component]

    def _fingerprint(self, component: str) -> str:
        files = self.files(component)
        if self.is_hollow(component):  # there is nothing to read, and it is never that of weights
            return sha256_text(canonical_json([HOLLOW_KEY, [[path.name, path.stat().st_size] for path in files]]))
        content, record = self.content(component), QuantisedRecord.of(self.folder(component))
        if record is None:
            self._require_finished(files)
            return content
        if content != record.content:
            place = self.folder(component)
            raise CheckpointError(f"{component}: {place} has changed since it was made", hint=_QUANTISE_AGAIN)
        return record.source

    def content(self, component: str) -> str:
        """The fingerprint of the files themselves, also of weights that were made of others."""
        return checkpoint_fingerprint(self.files(component), cache_folder=_cache())

    def _require_finished(self, files: Iterable[Path]) -> None:
        for path in files:
            said = header_of(path).get("__metadata__")
            if isinstance(said, dict) and SOURCE_KEY in said:
                raise CheckpointError(f"{path.parent}: was begun and not finished", hint=_QUANTISE_AGAIN)

    def __iter__(self) -> Iterator[str]:
        return iter(COMPONENTS)

    def __len__(self) -> int:
        return len(COMPONENTS)
