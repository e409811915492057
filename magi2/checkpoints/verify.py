"""Checking a weights folder: each component goes through its real, strict loader, onto a device that keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from magi2.checkpoints.headers import header_of
from magi2.checkpoints.layout import COMPONENTS, CheckpointFolder
from magi2.checkpoints.published import SAFETENSORS_DTYPES, TensorSpec, published_tensors
from magi2.config.profile import Architectures
from magi2.errors import Magi2Error
from magi2.models.audio_vae.state_dict import load_audio_decoder
from magi2.models.checkpoint import LoadReport, SafetensorsFolder
from magi2.models.preview.config import BF16, Weights, stored_weights
from magi2.models.preview.model import PreviewModel
from magi2.models.preview.quantised import E4M3
from magi2.models.preview.state_dict import load_preview
from magi2.models.refiner.loading import load_refiner
from magi2.models.text_encoder.encoder import load_text_encoder
from magi2.models.turbo_vae.loading import load_turbo_decoder
from magi2.models.video_vae.loading import load_wan_decoder, load_wan_encoder

NOWHERE = "meta"


@dataclass(frozen=True)
class ComponentReport:
    """What was found of one component. `problem` is None when it can be used; `skipped` are tensors nobody reads.

    A `hollow` one is as it should be and has no values: nothing can be rendered from it. `cast` names tensors of
    safetensors files that are stored in another dtype than the published table's; loaders take them and cast. `weights`
    is the format that the preview is stored in; the fingerprint of one that was quantised here is its source's.
    """

    component: str
    folder: Path
    files: int
    size_bytes: int
    tensors: int
    skipped: tuple[str, ...]
    fingerprint: str | None
    problem: str | None
    hollow: bool = False
    cast: tuple[str, ...] = ()
    weights: Weights = BF16


def verify(root: Path, architectures: Architectures, *, fingerprint: bool = True) -> Iterator[ComponentReport]:
    """One report per component, as each is done. `fingerprint` reads all bytes, the rest only headers."""
    weights = CheckpointFolder(root)
    loaders, table = _loaders(weights, architectures), published_tensors(architectures)
    for component in COMPONENTS:
        try:
            files = weights.files(component)
            reports = [loader().load_report for loader in loaders[component]]
            good = _good(weights, component, files, reports, fingerprint)
            form = _format(weights) if component == "preview" else BF16
            yield replace(good, cast=_cast(files, table[component]), weights=form)
        except Magi2Error as error:
            yield ComponentReport(component, weights.folder(component), 0, 0, 0, (), None, str(error))


def _load_preview(weights: CheckpointFolder, architectures: Architectures) -> PreviewModel:
    folder = weights.folder("preview")
    return load_preview(folder, architectures.preview, device=NOWHERE, weights=_format(weights))


def _good(
    weights: CheckpointFolder, component: str, files: list[Path], reports: list[LoadReport], fingerprint: bool
) -> ComponentReport:
    # A component with two halves is read twice; what one half skips, the other may use.
    skipped = set.intersection(*(set(report.skipped) for report in reports))
    return ComponentReport(
        component,
        weights.folder(component),
        len(files),
        sum(path.stat().st_size for path in files),
        sum(report.loaded for report in reports),
        tuple(sorted(skipped)),
        weights[component] if fingerprint else None,
        None,
        weights.is_hollow(component),
    )


def _cast(files: list[Path], specs: Mapping[str, TensorSpec]) -> tuple[str, ...]:
    stored = {
        name: entry["dtype"]
        for path in files
        if path.suffix == ".safetensors"
        for name, entry in header_of(path).items()
        if name in specs
    }
    quantised = SAFETENSORS_DTYPES[E4M3]  # which the loader takes with its scales alone
    return tuple(
        sorted(n for n, dtype in stored.items() if dtype not in (quantised, SAFETENSORS_DTYPES[specs[n].dtype]))
    )


def _format(weights: CheckpointFolder) -> Weights:
    return stored_weights(SafetensorsFolder(weights.folder("preview")).names())


def _loaders(weights: CheckpointFolder, architectures: Architectures) -> dict[str, list[Callable[[], Any]]]:
    vae, wan = architectures.video_vae, weights.folder("video_vae") / "Wan2.2_VAE.pth"
    return {
        "text_encoder": [lambda: load_text_encoder(weights.folder("text_encoder"), device=NOWHERE)],
        "preview": [lambda: _load_preview(weights, architectures)],
        "refiner": [lambda: load_refiner(weights.folder("refiner"), architectures.refiner, device=NOWHERE)],
        "video_vae": [
            lambda: load_wan_encoder(wan, vae, device=NOWHERE),
            lambda: load_wan_decoder(wan, vae, device=NOWHERE),
        ],
        "turbo_vae": [lambda: load_turbo_decoder(weights.folder("turbo_vae"), device=NOWHERE)],
        "audio_vae": [lambda: load_audio_decoder(weights.folder("audio_vae"), device=NOWHERE)],
    }
