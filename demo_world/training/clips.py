"""The clips that the transformer learns from, made once and kept on the device, and batches drawn from them there."""

# Shapes: K clips, B clips of a batch, L rows of a text, R rows of all texts, T/h/w video latents, A audio latents

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from demo_world.audio_latents import audio_latents
from demo_world.scenes import Scene, draw_scene
from demo_world.takes import draw_pictured, draw_take
from demo_world.training.batches import Batch
from demo_world.training.captions import FIGURE_SHARE, draw_text
from demo_world.training.rows import BatchShape
from demo_world.video_latents import image_latents, video_latents
from demo_world.wordings import write_unconditional
from magi2.models.preview.coordinates import Size
from magi2.models.text_encoder.encoder import TextEncoder, TextEncoding, load_text_encoder
from magi2.models.text_encoder.figures import pool_figures

FPS = 12.5
CLIP_SECONDS = 10.0
AUDIO_PER_LATENT = 8
TEXTS_PER_CLIP = 2
UNCONDITIONAL_SHARE = 0.12
"""Of the clips in a batch; their text is empty or a list of defects, their reference image stays, as in rendering."""
UNCONDITIONAL_TEXTS = 64
IMAGE_NOISE = 0.1
"""Largest deviation of the noise on reference images, which an encoder describes less exactly than training does."""
CHUNK = 128
TEXTS_AT_ONCE = 256
ROW_MULTIPLE = 8


def clip_size(latent_frames: int) -> tuple[Size, int]:
    """Latents (T, h, w) of video and latents of sound of clips that last `latent_frames`; 32 are the whole ten seconds.

    Source: 4 T - 3 frames at 12.5 per second, and 25 latents of sound per second.
    """
    return (latent_frames, 4, 8), AUDIO_PER_LATENT * latent_frames - 6


class Made(NamedTuple):
    """Clips of one kind: bf16 latents `video` [K, 48, T, h, w], `audio` [K, A, 64], `images` [K or 0, 48, 1, h, w]."""

    video: Tensor
    audio: Tensor
    images: Tensor
    texts: list[str]


@dataclass(frozen=True)
class Job:
    """Clips to make, reproducibly."""

    seed: str
    count: int
    has_figure: bool
    latent_frames: int


def make_clips(job: Job) -> Made:
    """Takes of drawn scenes that are not held out, with several texts each, clip after clip."""
    rng = random.Random(job.seed)
    takes = [draw_take(draw_scene(rng, held_out=False), rng) for _ in range(job.count)]
    (time, height, width), audio_length = clip_size(job.latent_frames)
    video = [video_latents(take, height=height, width=width, count=time, fps=FPS) for take in takes]
    images = [draw_image(take.scene, rng, height, width) for take in takes if job.has_figure]
    return Made(
        torch.cat(video).bfloat16(),
        torch.cat([audio_latents(take, audio_length) for take in takes]).bfloat16(),
        torch.cat(images).bfloat16() if images else video[0].new_zeros(0, 48, 1, height, width).bfloat16(),
        [draw_text(take.scene, rng, has_figure=job.has_figure) for take in takes for _ in range(TEXTS_PER_CLIP)],
    )


def draw_image(scene: Scene, rng: random.Random, height: int, width: int) -> Tensor:
    """Latents [1, 48, 1, h, w] of a picture of another take: same shape, size and colours, any motion and moment."""
    take = draw_pictured(scene, rng)
    return image_latents(take, height=height, width=width, seconds=rng.uniform(0.0, CLIP_SECONDS))


@dataclass(frozen=True, eq=False)
class Texts:
    """Embeddings of many texts on the device: `rows` [R, C] bf16, and where each text begins and how long it is."""

    rows: Tensor
    begin: Tensor
    length: Tensor
    figure_embeds: Tensor
    """[number of texts, C] bf16: the figure token of each, zero where none is named."""

    def padded(self, index: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Texts `index` [B] with `rows` rows each: [B, L, C] fp32, and which rows are tokens [B, L] bool."""
        place = torch.arange(rows, device=index.device)
        source = (self.begin[index][:, None] + place).clamp(max=len(self.rows) - 1)
        return self.rows[source].float(), place < self.length[index][:, None]


@dataclass(frozen=True, eq=False)
class Clips:
    """All clips of a run on the device, those without a reference image first; texts of clips, then unconditional ones.

    Latents are bf16.
    """

    video: Tensor
    audio: Tensor
    images: Tensor
    texts: Texts
    text_rows: tuple[int, int]

    def shape(self, batch_size: int) -> BatchShape:
        """The shape of batches: a third of the clips have an image. Raises: ValueError below two clips."""
        if batch_size < 2:
            raise ValueError(f"a batch of {batch_size}: want at least one clip without and one with a reference image")
        pictured = max(1, round(batch_size * FIGURE_SHARE))
        time, height, width = self.video.shape[2:]
        counts = (batch_size - pictured, pictured)
        return BatchShape(counts, self.text_rows, (time, height, width), self.audio.shape[1])

    def draw(self, shape: BatchShape, generator: torch.Generator) -> Batch:
        """A batch of random clips, drawn on the generator's device, which is that of the clips."""
        plain, pictured = shape.counts
        num_pictured = len(self.images)
        num_plain = len(self.video) - num_pictured
        image = _draw(num_pictured, pictured, generator)
        clip = torch.cat([_draw(num_plain, plain, generator), num_plain + image])
        named = clip * TEXTS_PER_CLIP + _draw(TEXTS_PER_CLIP, len(clip), generator)
        first = len(self.video) * TEXTS_PER_CLIP
        nothing = first + _draw(len(self.texts.begin) - first, len(clip), generator)
        coin = torch.rand(len(clip), generator=generator, device=clip.device)
        text = torch.where(coin < UNCONDITIONAL_SHARE, nothing, named)
        texts, is_text = zip(
            self.texts.padded(text[:plain], shape.text_rows[0]),
            self.texts.padded(text[plain:], shape.text_rows[1]),
            strict=True,
        )
        return Batch(
            video=self.video[clip].float(),
            audio=self.audio[clip].float(),
            texts=(texts[0], texts[1]),
            is_text=(is_text[0], is_text[1]),
            images=_blur(self.images[image].float(), generator),
            figure_embeds=self.texts.figure_embeds[named[plain:]].float(),
        )


def prepare_clips(
    text_encoder: Path, *, count: int, latent_frames: int, device: torch.device, seed: int, workers: int | None = None
) -> Clips:
    """Make `count` clips and encode their texts with the text encoder in that folder, as rendering encodes them.

    `workers` processes make the clips, by default as many as there are processors; 1 makes them here.
    """
    pictured = round(count * FIGURE_SHARE)
    kinds = ((False, count - pictured), (True, pictured))
    jobs = [job for has_figure, each in kinds for job in _jobs(each, seed, has_figure, latent_frames)]
    made = _run(jobs, workers or os.cpu_count() or 1)
    texts = [text for part in made for text in part.texts]
    rng = random.Random(seed)
    nothing = [write_unconditional(rng) for _ in range(UNCONDITIONAL_TEXTS)]
    encoder = load_text_encoder(text_encoder, device=device, dtype=torch.float32)
    encoded = encode_texts(encoder, [*texts, *nothing])
    plain_count = (count - pictured) * TEXTS_PER_CLIP
    longest_nothing = int(encoded.length[len(texts) :].max())
    longest = [int(kind.max()) for kind in (encoded.length[:plain_count], encoded.length[plain_count : len(texts)])]
    return Clips(
        video=torch.cat([part.video for part in made]).to(device),
        audio=torch.cat([part.audio for part in made]).to(device),
        images=torch.cat([part.images for part in made]).to(device),
        texts=encoded,
        text_rows=(_round_up(max(longest[0], longest_nothing)), _round_up(max(longest[1], longest_nothing))),
    )


@torch.no_grad()
def encode_texts(encoder: TextEncoder, texts: Sequence[str]) -> Texts:
    """Embeddings and figure tokens of `texts`, many at once; equal to the encoder's own, one by one."""
    tokens = [encoder.tokenizer.tokenize(text) for text in texts]
    order = sorted((index for index in range(len(texts)) if len(tokens[index])), key=lambda index: len(tokens[index]))
    rows: list[Tensor] = [torch.zeros(0, encoder.hidden_size, dtype=torch.bfloat16)] * len(texts)
    figures = torch.zeros(len(texts), encoder.hidden_size, dtype=torch.bfloat16)
    for begin in range(0, len(order), TEXTS_AT_ONCE):
        indices = order[begin : begin + TEXTS_AT_ONCE]
        ids = [torch.tensor(tokens[index].ids) for index in indices]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        is_token = torch.arange(padded.shape[1]) < torch.tensor([len(one) for one in ids])[:, None]
        hidden = encoder.tower(
            input_ids=padded.to(encoder.device), attention_mask=is_token.long().to(encoder.device), use_cache=False
        ).last_hidden_state.cpu()
        for index, embeds in zip(indices, hidden, strict=True):
            own, text = embeds[None, : len(tokens[index])], texts[index]
            encoding = TextEncoding(own, tokens[index].ids, tokens[index].offsets, text, 0)
            figures[index] = pool_figures(encoding, [1]).embeds[0].bfloat16()
            rows[index] = own[0].bfloat16()
    length = torch.tensor([len(own) for own in rows])
    device = encoder.device
    return Texts(
        torch.cat(rows).to(device), (length.cumsum(0) - length).to(device), length.to(device), figures.to(device)
    )


def _jobs(count: int, seed: int, has_figure: bool, latent_frames: int) -> Iterator[Job]:
    for begin in range(0, count, CHUNK):
        yield Job(f"{seed}-{has_figure}-{begin}", min(CHUNK, count - begin), has_figure, latent_frames)


def _run(jobs: Sequence[Job], workers: int) -> list[Made]:
    """The jobs' clips in order."""
    if workers == 1 or len(jobs) == 1:
        return [make_clips(job) for job in jobs]
    context = multiprocessing.get_context("spawn")
    processes = min(workers, len(jobs))
    with ProcessPoolExecutor(processes, context, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return [_arrive(*parts) for parts in pool.map(_make_for_travel, jobs)]


def _make_for_travel(job: Job) -> tuple[Any, Any, Any, list[str]]:
    """Latents as arrays of bytes: tensors would take an open file each."""
    made = make_clips(job)
    video, audio, images = (part.view(torch.int16).numpy() for part in (made.video, made.audio, made.images))
    return video, audio, images, made.texts


def _arrive(video: Any, audio: Any, images: Any, texts: list[str]) -> Made:
    latents = [torch.from_numpy(part).view(torch.bfloat16) for part in (video, audio, images)]
    return Made(latents[0], latents[1], latents[2], texts)


def _draw(limit: int, count: int, generator: torch.Generator) -> Tensor:
    return torch.randint(limit, (count,), generator=generator, device=generator.device)


def _blur(images: Tensor, generator: torch.Generator) -> Tensor:
    device = generator.device
    level = IMAGE_NOISE * torch.rand(len(images), 1, 1, 1, 1, generator=generator, device=device)
    return images + level * torch.randn(images.shape, generator=generator, device=device)


def _round_up(length: int) -> int:
    return -(-length // ROW_MULTIPLE) * ROW_MULTIPLE
