"""decode: latents become lossless picture and sound, streamed window by window into the file."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from magi2.artifacts.recipe import Recipe
from magi2.errors import ContractError
from magi2.media.audio import write_audio
from magi2.media.frames import to_uint8
from magi2.media.lossless import LosslessWriter
from magi2.media.picture_measures import PictureMeasures
from magi2.media.sound_measures import sound_measures
from magi2.models.audio_vae.model import AudioDecoder
from magi2.models.audio_vae.resample import resample_fourier
from magi2.models.audio_vae.state_dict import load_audio_decoder
from magi2.models.turbo_vae.loading import load_turbo_decoder
from magi2.models.video_vae.loading import load_wan_decoder
from magi2.platform import copy_to_host
from magi2.quality.measures import MEASURES
from magi2.recipes.book import delivered_frames, frame_rate
from magi2.stages.base import Product
from magi2.stages.behind import Behind
from magi2.stages.contracts import PICTURE, SOUND, preview_contract, refine_contract
from magi2.stages.teamwork import TeamStage
from magi2.types import Clip, StageName

Copied = tuple[Tensor, Callable[[], None]]
"""Frames on their way to the host, and what waits for them: see `platform.copy_to_host`."""


def written_by(writer: LosslessWriter) -> Callable[[Copied], None]:
    """Writes frames once they have come."""

    def write(copied: Copied) -> None:
        frames, wait = copied
        wait()
        writer.write(frames)

    return write


class VideoDecoder(Protocol):
    """Both decoders: normalised latents [1, 48, T, h, w] to groups of frames [1, 3, f, H, W], nominally in [-1, 1]."""

    def decode(self, latents: Tensor) -> Iterator[Tensor]: ...


@dataclass(frozen=True)
class Decoders:
    """This rank's decoders: that of the sound on rank 0 alone, that of the picture where windows are decoded."""

    video: VideoDecoder | None
    audio: AudioDecoder | None


@dataclass(frozen=True)
class DecodeInputs:
    """Video latents [1, C, T, h, w] and audio latents [1, A, C], on the host."""

    video: Tensor
    audio: Tensor


class DecodeStage(TeamStage[Decoders, DecodeInputs, Product | None]):
    """Writes FFV1 RGB and 44.1 kHz float sound, and measures both on the way; what is a defect is judged by readers.

    Ranks share the windows of the turbo decoder; the Wan decoder runs on rank 0.
    """

    name: ClassVar[StageName] = StageName.DECODE

    def recipe(self, clip: Clip) -> Recipe:
        return self.context.recipe(self.name, clip)

    def load(self) -> Decoders:
        leads, weights = self.context.team.leads, self.context.weights
        audio = load_audio_decoder(weights.folder("audio_vae"), device=self.context.device) if leads else None
        return Decoders(self._load_video(), audio)

    def _load_video(self) -> VideoDecoder | None:
        context, profile = self.context, self.context.book.profile
        if profile.decode.decoder == "turbo":
            return load_turbo_decoder(
                context.weights.folder("turbo_vae"),
                device=context.device,
                dtype=context.compute_dtype,
                mesh=context.team.mesh,
            )
        if not context.team.leads:
            return None
        path = context.weights.files("video_vae")[0]
        return load_wan_decoder(path, profile.architectures.video_vae, device=context.device)

    def read(self, clip: Clip) -> DecodeInputs:
        context, profile = self.context, self.context.book.profile
        preview = context.tensors(context.recipe(StageName.PREVIEW, clip), preview_contract(profile), clip)
        if profile.refiner is None:
            return DecodeInputs(preview["video"], preview["audio"])
        refined = context.tensors(context.recipe(StageName.REFINE, clip), refine_contract(profile), clip)
        return DecodeInputs(refined["video"], preview["audio"])

    @torch.no_grad()
    def compute(self, clip: Clip, inputs: DecodeInputs, models: Decoders, folder: Path | None) -> Product | None:
        frames = models.video.decode(inputs.video.to(self.context.device)) if models.video else iter(())
        if folder is None or models.audio is None:
            deque(frames, maxlen=0)  # what this rank decodes goes to rank 0
            return None
        seen = PictureMeasures(float(frame_rate(self.context.book.profile)))
        self._write_picture(clip, frames, folder / PICTURE, seen)
        samples = resample_fourier(models.audio.decode(inputs.audio.to(self.context.device)))
        write_audio(folder / SOUND, samples)
        return Product(
            files={PICTURE: folder / PICTURE, SOUND: folder / SOUND},
            report={
                "frames": seen.frame_count,
                "audio_samples": samples.shape[-1],
                MEASURES: {"picture": seen.report(), "sound": sound_measures(samples.cpu())},
            },
        )

    def write(self, clip: Clip, outputs: Product | None, folder: Path) -> Product:
        if outputs is None:
            raise ContractError("the rank that publishes a clip decoded nothing")
        return outputs

    def _write_picture(self, clip: Clip, decoded: Iterator[Tensor], path: Path, seen: PictureMeasures) -> None:
        profile = self.context.book.profile
        size, total = profile.refiner or profile.preview, delivered_frames(profile)
        writer = LosslessWriter(
            path, width=size.width, height=size.height, fps=frame_rate(profile), ffmpeg=self.context.ffmpeg
        )
        try:
            # Windows are decoded while the one before is encoded. The writer ends first: then no write can hang.
            with Behind(written_by(writer)) as behind, writer:
                for pixels in decoded:
                    frames = to_uint8(pixels, profile.decode.rounding)
                    behind.put(copy_to_host(frames))
                    seen.add(pixels, frames)
                    self.context.progress.step(self.name, clip, seen.frame_count, total)
                behind.finish()
                if seen.frame_count != total:
                    raise ContractError(f"decoded {seen.frame_count} frames, {total} were planned")
        finally:
            if isinstance(decoded, Generator):
                decoded.close()  # now, since other ranks wait until their windows are taken
