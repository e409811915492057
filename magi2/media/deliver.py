"""The delivered file: one ffmpeg run from lossless picture and sound to a tagged mp4 of the exact length."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, get_args

import ffmpeg as graph

from magi2.errors import InputError, MediaError
from magi2.files import partial_file
from magi2.media.audio import audio_sample_count
from magi2.media.delivery import (
    AV1_PRESETS,
    ENCODERS,
    METADATA_LIMIT_BYTES,
    SAMPLE_RATE_HZ,
    DeliverySpec,
    Fit,
    Overlay,
    check_even,
    delivered_frame_count,
    fitted_size,
)
from magi2.media.ffmpeg import Ffmpeg, file_url, run_ffmpeg
from magi2.media.marks.xmp import xmp_box
from magi2.media.reading import open_media, video_stream

SCALERS: Mapping[Fit, str] = dict.fromkeys(get_args(Fit), "lanczos") | {"nearest": "neighbor"}
"""ffmpeg's name of what resizes the picture and halves its colours, which a crop needs too."""
SCALER_FLAGS = "accurate_rnd+full_chroma_int+full_chroma_inp+bitexact"
AAC_FRAME_SAMPLES = 1024
"""What the encoder takes at a time; ffmpeg 5.1 cuts a sound to it by itself unless the sound is silence alone."""
METADATA_KEY = re.compile(r"[A-Za-z0-9_.\-]+")


def deliver(
    video: Path,
    audio: Path,
    target: Path,
    spec: DeliverySpec,
    *,
    fps: Fraction,
    frame_count: int,
    metadata: Mapping[str, str],
    ffmpeg: Ffmpeg,
    label: Overlay | None = None,
) -> None:
    """Encode the lossless `video` (`frame_count` frames at `fps`) and `audio` into the mp4 `target`.

    yuv420p with BT.709 matrix and tags, limited range, constant frame rate, AAC cut (or filled with silence) to the
    picture's exact length, index in front, `metadata` in the container, and at its end a packet of XMP that says that a
    model made it. `label` is laid over the picture at its delivered size. Same inputs, program and thread count: same
    bytes. Raises: MissingToolError without the encoder, InputError when the size cannot be reached or metadata cannot
    be stored, MediaError when an input is unreadable or ffmpeg fails.
    """
    ffmpeg.require(spec.encoder, "aac", known=tuple(ENCODERS.values()))
    total = delivered_frame_count(spec, frame_count=frame_count, fps=fps, sample_count=audio_sample_count(audio))
    picture = _picture(video, spec, fps=fps, held_frames=total - frame_count, label=label)
    sound = _sound(audio, samples=round(total / fps * SAMPLE_RATE_HZ))
    options = _encoder_options(spec) | _container_options(fps) | _metadata_options(metadata)
    with partial_file(target, MediaError) as partial:
        stream = graph.output(picture, sound, file_url(partial), **options)
        run_ffmpeg(ffmpeg, stream, purpose=f"deliver {target}")
        with partial.open("ab") as file:
            file.write(xmp_box())


def _picture(video: Path, spec: DeliverySpec, *, fps: Fraction, held_frames: int, label: Overlay | None) -> Any:
    native = _native_size(video)
    width, height = spec.size or native
    check_even(width, height)
    stream = graph.input(file_url(video)).video
    if held_frames:
        stream = stream.filter("tpad", stop_mode="clone", stop=held_frames)
    if (width, height) != native and spec.fit == "crop":
        if width > native[0] or height > native[1]:
            wanted, given = f"{width}x{height}", f"{native[0]}x{native[1]}"
            raise InputError(f"delivery {wanted} cannot be cropped from {given}", hint="use fit: cover or contain")
        stream = stream.filter("crop", width, height, (native[0] - width) // 2, (native[1] - height) // 2)
    resized = fitted_size(native, (width, height), spec.fit)
    flags = f"{SCALERS[spec.fit]}+{SCALER_FLAGS}"
    stream = (
        stream.filter("setpts", f"N/({fps}*TB)")
        .filter("scale", *resized, out_color_matrix="bt709", out_range="tv", flags=flags)
        .filter("format", "yuv420p")
    )
    if resized != (width, height):
        margins = abs(width - resized[0]) // 2, abs(height - resized[1]) // 2
        stream = stream.filter("crop" if spec.fit == "cover" else "pad", width, height, *margins)
    if label is not None:
        stream = _labelled(stream, label)
    # setparams comes last: the graph's frame properties decide the tags, not the encoder's options.
    return stream.filter("setsar", 1).filter(
        "setparams", color_primaries="bt709", color_trc="bt709", colorspace="bt709", range="tv"
    )


def _labelled(stream: Any, label: Overlay) -> Any:
    raw = {"format": "rawvideo", "pix_fmt": "rgba", "s": f"{label.width}x{label.height}"}
    picture = (
        graph.input(file_url(label.path), **raw)
        .video.filter("scale", out_color_matrix="bt709", out_range="tv", flags=SCALER_FLAGS)
        .filter("format", "yuva420p")
    )
    while_shown = {} if label.seconds is None else {"enable": f"lt(t,{label.seconds})"}
    return graph.filter([stream, picture], "overlay", label.x, label.y, format="yuv420", **while_shown)


def _sound(audio: Path, *, samples: int) -> Any:
    # Samples beyond full scale are clipped here and nowhere else.
    return (
        graph.input(file_url(audio))
        .audio.filter("asoftclip", type="hard")
        .filter("apad", whole_len=samples)
        .filter("atrim", end_sample=samples)
        .filter("asetnsamples", n=AAC_FRAME_SAMPLES, p=0)
    )


def _encoder_options(spec: DeliverySpec) -> dict[str, Any]:
    options = {"c:v": spec.encoder, "crf": spec.crf, "preset": spec.preset, "threads:v": spec.threads}
    if spec.codec == "hevc":
        options["x265-params"] = f"pools={spec.threads}:frame-threads=1:log-level=error"
        options["tag:v"] = "hvc1"  # the tag that Apple's players want
    if spec.codec == "av1":
        options |= {"preset": AV1_PRESETS[spec.preset], "svtav1-params": f"lp={spec.threads}"}
    return options | {"c:a": "aac", "b:a": f"{spec.audio_bitrate_kbps}k", "ar": SAMPLE_RATE_HZ, "ac": 2}


def _container_options(fps: Fraction) -> dict[str, Any]:
    bitexact = {"fflags": "+bitexact", "flags:v": "+bitexact", "flags:a": "+bitexact"}
    timing = {"r": str(fps), "fps_mode": "cfr"}
    stripped = {"map_metadata": -1, "map_chapters": -1}
    return {"format": "mp4", "movflags": "+faststart+use_metadata_tags"} | timing | stripped | bitexact


def _metadata_options(metadata: Mapping[str, str]) -> dict[str, str]:
    options = {}
    for index, (key, value) in enumerate(sorted(metadata.items())):
        if not METADATA_KEY.fullmatch(key):
            raise InputError(f"metadata key {key!r}: letters, digits, '_', '.' and '-' only")
        entry = f"{key}={_printable(value)}"
        if len(entry.encode()) > METADATA_LIMIT_BYTES:
            raise InputError(f"metadata {key}: {len(entry.encode())} bytes, at most {METADATA_LIMIT_BYTES}")
        options[f"metadata:g:{index}"] = entry  # ffmpeg-python wants distinct option names
    return options


def _printable(value: str) -> str:
    """`value` without control characters other than line breaks and tabs, and without unpaired surrogates."""
    kept = "".join(character for character in value if character in "\n\t" or unicodedata.category(character) != "Cc")
    return kept.encode("utf-8", "replace").decode()


def _native_size(video: Path) -> tuple[int, int]:
    with open_media(video) as container:
        context = video_stream(container).codec_context
        return context.width, context.height
