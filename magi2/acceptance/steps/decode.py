"""Decoding the largest profile's clip: picture, sound, and the lossless file; twice with equal bits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from magi2 import platform
from magi2.acceptance.decoders import random_audio_decoder, random_turbo_decoder
from magi2.acceptance.measure import GIB, settle, timed
from magi2.acceptance.plan import Difference, Figure, Found
from magi2.acceptance.site import Site
from magi2.media.fitness import fit_ffmpeg
from magi2.media.frames import to_uint8
from magi2.media.lossless import LosslessWriter
from magi2.models.audio_vae.model import AudioDecoder
from magi2.models.audio_vae.resample import resample_fourier
from magi2.models.audio_vae.state_dict import load_audio_decoder
from magi2.models.preview.lengths import audio_latent_count
from magi2.models.turbo_vae.loading import load_turbo_decoder
from magi2.models.video_vae.loading import load_wan_decoder
from magi2.platform import copy_to_host
from magi2.recipes.book import delivered_frames, frame_rate
from magi2.stages.behind import Behind
from magi2.stages.decode import VideoDecoder, written_by


@dataclass(frozen=True)
class Pass:
    """A clip's frames, taken as they come: how many, sums that tell their bits, milliseconds until the last one."""

    sums: list[tuple[list[int], int]]
    frames: int
    ms: float


@torch.no_grad()
def run(site: Site) -> Iterator[Found]:
    """Random latents, of which the picture is noise: what a decoder takes does not depend on it, unlike the file."""
    profile = site.largest
    decoded, planned = profile.refiner or profile.preview, delivered_frames(profile)
    ffmpeg = fit_ffmpeg(site.settings.ffmpeg, profile.delivery)
    video, audio, source = _decoders(site)
    yield Figure("weights", source)
    yield Figure("size", f"{decoded.width}x{decoded.height}")
    yield Figure("pixels", decoded.width * decoded.height * planned)
    torch.manual_seed(2)
    channels = profile.architectures.preview
    latents = torch.randn(1, channels.video_in_channels, *site.decoded_size, device=site.device)
    sound = torch.randn(1, audio_latent_count(profile.duration_s), channels.audio_in_channels, device=site.device)
    platform.reset_peak_memory(accelerator=site.accelerator)
    first = decode(site, video, latents, lambda frames: None)
    yield Figure("picture", round(first.ms, 1), "ms")
    picture, fps = site.folder / "picture.mkv", frame_rate(profile)
    writer = LosslessWriter(picture, width=decoded.width, height=decoded.height, fps=fps, ffmpeg=ffmpeg)
    started = time.perf_counter()
    with Behind(written_by(writer)) as behind, writer:
        second = decode(site, video, latents, lambda frames: behind.put(copy_to_host(frames)))
        behind.finish()
    all_ms = 1e3 * (time.perf_counter() - started)
    span = timed(lambda: resample_fourier(audio.decode(sound)), 2, warm_up=1, device=site.device)
    yield Figure("sound", round(span, 2), "ms")
    yield Figure("clip", round(all_ms + span, 1), "ms")
    yield Figure("peak", round(platform.memory_stats(accelerator=site.accelerator).peak / GIB, 2), "GiB")
    if second.frames != planned:
        yield Difference(f"{second.frames} frames came, {planned} were planned")
    if first.sums != second.sums:
        yield Difference("the same latents gave other frames the second time")


def decode(site: Site, video: VideoDecoder, latents: Tensor, take: Callable[[Tensor], None]) -> Pass:
    """The clip once; `take` gets the frames of each window before the next one is decoded, as in the stage."""
    sums, count, started = [], 0, time.perf_counter()
    for pixels in video.decode(latents):
        frames = to_uint8(pixels, site.largest.decode.rounding)
        take(frames)
        sums.append(_sums(frames))
        count += len(frames)
    settle(site.device)
    return Pass(sums, count, 1e3 * (time.perf_counter() - started))


def _sums(frames: Tensor) -> tuple[list[int], int]:
    """Of each frame, and of all values times their place in a frame: a digest would take as long as the decoding."""
    values = frames.flatten(1)
    places = values.sum(0, dtype=torch.int64) * torch.arange(values.shape[1], device=values.device)
    return values.sum(1, dtype=torch.int64).tolist(), int(places.sum())


def _decoders(site: Site) -> tuple[VideoDecoder, AudioDecoder, str]:
    """Of picture and sound, and whether their weights are given or random."""
    profile = site.largest
    picture = site.weights("turbo_vae" if profile.decode.decoder == "turbo" else "video_vae")
    sound = site.weights("audio_vae")
    if picture is None or sound is None:
        return random_turbo_decoder(site.device, site.dtype), random_audio_decoder(site.device), "random"
    audio = load_audio_decoder(sound.folder("audio_vae"), device=site.device)
    if profile.decode.decoder == "turbo":
        turbo = load_turbo_decoder(picture.folder("turbo_vae"), device=site.device, dtype=site.dtype)
        return turbo, audio, "given"
    path = picture.files("video_vae")[0]
    return load_wan_decoder(path, profile.architectures.video_vae, device=site.device), audio, "given"
