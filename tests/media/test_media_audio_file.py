"""The stored sound: exact, reproducible, and refused when damaged."""

from __future__ import annotations

import wave
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from magi2.errors import ContractError, MediaError
from magi2.media.audio import audio_sample_count, write_audio
from tests.media.media_clips import tone


def stored_samples(path: Path) -> torch.Tensor:
    """Samples [2, n] fp32 as another program reads them."""
    with av.open(str(path)) as container:
        read = [frame.to_ndarray().reshape(-1, 2) for frame in container.decode(audio=0)]
    return torch.from_numpy(np.concatenate(read)).T


def test_stored_samples_come_back_bit_equal_beyond_full_scale_too(tmp_path: Path) -> None:
    samples = torch.randn(2, 12_345, generator=torch.Generator().manual_seed(3)) * 2
    write_audio(tmp_path / "a.wav", samples)
    assert audio_sample_count(tmp_path / "a.wav") == 12_345
    assert torch.equal(stored_samples(tmp_path / "a.wav"), samples)
    write_audio(tmp_path / "b.wav", samples)
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_other_programs_read_the_file(tmp_path: Path) -> None:
    samples = tone(44_100)
    write_audio(tmp_path / "a.wav", samples)
    with av.open(str(tmp_path / "a.wav")) as container:
        stream = container.streams.audio[0]
        assert (stream.codec_context.name, stream.rate, stream.channels) == ("pcm_f32le", 44_100, 2)
    assert torch.equal(stored_samples(tmp_path / "a.wav"), samples)


@pytest.mark.parametrize(
    "samples", [torch.zeros(10), torch.zeros(1, 10), torch.zeros(10, 2), torch.zeros(2, 10, dtype=torch.float64)]
)
def test_samples_of_another_shape_or_dtype_are_refused(tmp_path: Path, samples: torch.Tensor) -> None:
    with pytest.raises(ContractError, match="audio samples"):
        write_audio(tmp_path / "a.wav", samples)
    assert list(tmp_path.iterdir()) == []


def test_truncated_foreign_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    write_audio(path, tone(1000))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(MediaError, match="truncated"):
        audio_sample_count(path)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(44_100)
        file.writeframes(bytes(400))
    with pytest.raises(MediaError, match=r"not a 44\.1 kHz stereo float WAV"):
        audio_sample_count(path)
    with pytest.raises(MediaError, match=r"absent\.wav: No such file"):
        audio_sample_count(tmp_path / "absent.wav")


def test_unwritable_target_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    for target in (tmp_path / "taken", tmp_path / "absent/a.wav"):
        with pytest.raises(MediaError, match="cannot write"):
            write_audio(target, tone(10))
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
