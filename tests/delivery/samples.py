"""Small files for the tests of delivery."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import av
import numpy as np

from magi2.artifacts.recipe import sha256_file
from magi2.delivery.sidecar import (
    FileRecord,
    ImageRecord,
    ProfileRecord,
    Sidecar,
    StageRecord,
)
from magi2.media.marks.aigc import AIGC_KEY, aigc_entry
from magi2.media.marks.xmp import xmp_box
from magi2.types import StageName

KEY, DIGEST = "5" * 64, "3" * 64


def sidecar(**changes: object) -> Sidecar:
    """The sidecar of no clip in particular."""
    usual = Sidecar(
        version=1,
        clip_id="1" * 64,
        prompt="a heron\ttakes off \U0001f426",
        caption="A heron takes off.",
        negative_prompt="blurred",
        images=(ImageRecord(figure=1, sha256="2" * 64),),
        seed=7,
        profile=ProfileRecord(name="tiny", digest=DIGEST, settings={"preview": {"steps": 8, "size": None}}),
        weights={"preview": "4" * 64},
        stages={
            StageName.MUX: StageRecord(
                key=KEY,
                made_at=datetime(2026, 11, 30, tzinfo=UTC),
                seconds=1.5,
                program="0.1",
                made_by={"ffmpeg": "7"},
            )
        },
        marking={"version": 1, "producer": "", "provenance": "ids"},
        stored=FileRecord(sha256="6" * 64, size_bytes=10),
        delivered=FileRecord(sha256="7" * 64, size_bytes=12),
        signed=False,
    )
    return usual.model_copy(update=changes)


def write_marked(path: Path, producer: str = "") -> Path:
    """A tiny clip with the marks that every delivered file has, as the sidecar has it."""
    tags = {"magi2_artifact": KEY, "magi2_profile": DIGEST, "magi2_seed": "7"}
    write_mp4(path, **{AIGC_KEY: aigc_entry(producer, KEY), **tags})
    with path.open("ab") as file:
        file.write(xmp_box())
    return path


def write_sidecar(clip: Path, **changes: object) -> Path:
    """The sidecar beside a clip, of its bytes."""
    delivered = FileRecord(sha256=sha256_file(clip), size_bytes=clip.stat().st_size)
    path = clip.with_suffix(".json")
    path.write_bytes(sidecar(**{"delivered": delivered, **changes}).to_bytes())
    return path


def write_mp4(path: Path, **metadata: str) -> Path:
    """A tiny clip, made in this process."""
    with av.open(str(path), "w", options={"movflags": "use_metadata_tags"}) as container:
        container.metadata.update(metadata)
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for index in range(5):
            picture = np.full((32, 32, 3), 40 * index, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    return path


def flip_bit(path: Path, place: int) -> None:
    """Change one bit of one byte."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
