"""Where each component lies in a weights folder of the published layout, and its fingerprint; torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from magi2.artifacts.fingerprint import checkpoint_fingerprint
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


def _cache() -> Path:
    """Where digests are remembered when the weights lie on a read-only mount: hashing 307 GB takes minutes."""
    return Path.home() / ".cache" / "magi2" / "fingerprints"


class CheckpointFolder(Mapping[str, str]):
    """A weights folder; as a mapping it gives each component's fingerprint, computed on first use."""

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

    def __getitem__(self, component: str) -> str:
        if component not in self._fingerprints:
            self._fingerprints[component] = checkpoint_fingerprint(self.files(component), cache_folder=_cache())
        return self._fingerprints[component]

    def __iter__(self) -> Iterator[str]:
        return iter(COMPONENTS)

    def __len__(self) -> int:
        return len(COMPONENTS)
