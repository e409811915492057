"""decode: latents become lossless picture and sound, streamed window by window into the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from magi2.artifacts.recipe import Recipe
from magi2.errors import ContractError
from magi2.media.audio import write_audio
from magi2.media.frames import FrameStatistics, to_uint8
from magi2.media.lossless import LosslessWriter
from magi2.models.audio_vae.model import AudioDecoder
from magi2.models.audio_vae.resample import resample_fourier
from magi2.models.audio_vae.state_dict import load_audio_decoder
from magi2.models.turbo_vae.loading import load_turbo_decoder
from magi2.models.video_vae.loading import load_wan_decoder
from magi2.stages.base import Product, Stage
from magi2.stages.contracts import preview_contract, refine_contract
from magi2.stages.recipes import delivered_frames, frame_rate
from magi2.types import Clip, StageName

PICTURE, SOUND = "picture.mkv", "sound.wav"


class VideoDecoder(Protocol):
    """Both decoders: normalised latents [1, 48, T, h, w] to groups of frames [1, 3, f, H, W], nominally in [-1, 1]."""

    def decode(self, latents: Tensor) -> Iterator[Tensor]: ...


@dataclass(frozen=True)
class Decoders:
    video: VideoDecoder
    audio: AudioDecoder


class DecodeStage(Stage[Decoders]):
    """Writes FFV1 RGB and 44.1 kHz float sound; black, frozen, silent or non-finite results are flagged."""

    name: ClassVar[StageName] = StageName.DECODE

    def recipe(self, clip: Clip) -> Recipe:
        return self.context.recipe(self.name, clip)

    def load(self) -> Decoders:
        context, profile = self.context, self.context.book.profile
        video: VideoDecoder
        if profile.decode.decoder == "turbo":
            folder = context.weights.folder("turbo_vae")
            video = load_turbo_decoder(folder, device=context.device, dtype=context.compute_dtype)
        else:
            path = context.weights.files("video_vae")[0]
            video = load_wan_decoder(path, profile.architectures.video_vae, device=context.device)
        return Decoders(video, load_audio_decoder(context.weights.folder("audio_vae"), device=context.device))

    def make(self, clip: Clip, models: Decoders, folder: Path) -> Product:
        video_latents, audio_latents = self._latents(clip)
        statistics = FrameStatistics()
        self._write_picture(clip, models.video, video_latents, folder / PICTURE, statistics)
        with torch.no_grad():
            samples = resample_fourier(models.audio.decode(audio_latents.to(self.context.device)))
        statistics.add_audio(samples)
        write_audio(folder / SOUND, samples)
        return Product(
            files={PICTURE: folder / PICTURE, SOUND: folder / SOUND},
            flags=statistics.flags,
            report={"frames": statistics.frame_count, "audio_samples": samples.shape[-1]},
        )

    def _latents(self, clip: Clip) -> tuple[Tensor, Tensor]:
        context, profile = self.context, self.context.book.profile
        preview = context.tensors(context.recipe(StageName.PREVIEW, clip), preview_contract(profile), clip)
        if profile.refiner is None:
            return preview["video"], preview["audio"]
        refined = context.tensors(context.recipe(StageName.REFINE, clip), refine_contract(profile), clip)
        return refined["video"], preview["audio"]

    @torch.no_grad()
    def _write_picture(
        self, clip: Clip, decoder: VideoDecoder, latents: Tensor, path: Path, statistics: FrameStatistics
    ) -> None:
        profile = self.context.book.profile
        size, total = profile.refiner or profile.preview, delivered_frames(profile)
        writer = LosslessWriter(
            path, width=size.width, height=size.height, fps=frame_rate(profile), ffmpeg=self.context.ffmpeg
        )
        with writer:
            for pixels in decoder.decode(latents.to(self.context.device)):
                frames = to_uint8(pixels, profile.decode.rounding)
                statistics.add_frames(pixels, frames)
                writer.write(frames)
                self.context.progress.step(self.name, clip, statistics.frame_count, total)
            if statistics.frame_count != total:
                raise ContractError(f"decoded {statistics.frame_count} frames, {total} were planned")
