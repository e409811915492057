"""Sound between decoder and delivery: a WAV of 32-bit floats, exact to the bit, 44.1 kHz stereo.

Floats rather than 16-bit integers because samples may exceed full scale: nothing is clipped or rounded before the
delivered file, whose encoder works on floats too. One clip takes 3.5 MB.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

from magi2.errors import ContractError, MediaError
from magi2.files import disk_errors, partial_file
from magi2.media.delivery import SAMPLE_RATE_HZ

if TYPE_CHECKING:
    from torch import Tensor

CHANNELS = 2
FRAME_BYTES = 4 * CHANNELS
IEEE_FLOAT = 3  # the WAV format tag
_HEADER = struct.Struct("<4sI4s 4sIHHIIHHH 4sII 4sI")


def write_audio(path: Path, samples: Tensor) -> None:
    """Store `samples` [2, n] fp32, left channel first, as they are; the same samples give the same bytes.

    Raises: ContractError for another shape or dtype, MediaError when the file cannot be written.
    """
    import torch  # not at the top: processes that never load it try out ffmpeg

    if samples.dim() != 2 or samples.shape[0] != CHANNELS or samples.dtype != torch.float32:
        raise ContractError(f"audio samples: {samples.dtype} {tuple(samples.shape)}, want torch.float32 [2, n]")
    interleaved = samples.detach().cpu().T.contiguous().numpy().astype("<f4", copy=False)
    _write(path, samples.shape[1], interleaved.tobytes())


def write_silence(path: Path, count: int) -> None:
    """Store `count` samples of silence per channel, as `write_audio` would. Raises: MediaError as it does."""
    _write(path, count, bytes(count * FRAME_BYTES))


def _write(path: Path, count: int, data: bytes) -> None:
    with partial_file(path, MediaError) as partial, partial.open("wb") as file:
        file.write(_header(count))
        file.write(data)


def audio_sample_count(path: Path) -> int:
    """Samples per channel of a file by `write_audio`, from its header checked against its size."""
    with disk_errors(path, MediaError), path.open("rb") as file:
        size = path.stat().st_size
        header = file.read(_HEADER.size)
    count = max(0, size - _HEADER.size) // FRAME_BYTES
    if header != _header(count) or size != _HEADER.size + count * FRAME_BYTES:
        raise MediaError(f"{path}: not a 44.1 kHz stereo float WAV, or truncated ({size} bytes)")
    return count


def _header(count: int) -> bytes:
    data_bytes = count * FRAME_BYTES
    return _HEADER.pack(
        *(b"RIFF", _HEADER.size - 8 + data_bytes, b"WAVE"),
        *(b"fmt ", 18, IEEE_FLOAT, CHANNELS, SAMPLE_RATE_HZ, SAMPLE_RATE_HZ * FRAME_BYTES, FRAME_BYTES, 32, 0),
        *(b"fact", 4, count),
        *(b"data", data_bytes),
    )
