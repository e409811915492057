"""The published JSON: which keys matter, how lists are read, what is refused."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path

import pytest

from magi2.errors import CheckpointError, ConfigError
from magi2.models.turbo_vae.config import PUBLISHED_TURBO_DECODER, TINY_TURBO_DECODER, TurboDecoderConfig

DEMO = {
    "latent_channels": 48,
    "decoder_block_out_channels": [16, 24, 32, 48],
    "decoder_layers_per_block": [1, 1, 1, 1, 1],
    "decoder_spatio_temporal_scaling": [False, True, True, True],
    "decoder_spatio_only": [False, True, False, False],
    "decoder_is_dw_conv": [False] * 5,
    "patch_size": 2,
}


def write(content: object, folder: Path) -> Path:
    path = folder / "turbo.json"
    path.write_text(json.dumps(content))
    return path


def test_published_file_gives_the_published_configuration(golden: Path, tmp_path: Path) -> None:
    listed = json.loads((golden / "turbo_vae/full_parameter_list.json").read_text())
    assert TurboDecoderConfig.from_json(write(listed["assumed_config"], tmp_path)) == PUBLISHED_TURBO_DECODER


def test_written_configuration_reads_back(tmp_path: Path) -> None:
    path = write(dataclasses.asdict(TINY_TURBO_DECODER), tmp_path)
    assert TurboDecoderConfig.from_json(path) == TINY_TURBO_DECODER


def test_missing_keys_get_the_defaults_of_the_released_class(tmp_path: Path) -> None:
    config = TurboDecoderConfig.from_json(write(DEMO, tmp_path))
    assert (config.first_chunk_size, config.step_size) == (3, 5)
    assert (config.use_unpatchify, config.decoder_dw_kernel_size) == (False, 3)


def test_lists_are_read_from_deep_to_shallow() -> None:
    stages = PUBLISHED_TURBO_DECODER.stages
    assert [(s.in_channels, s.out_channels, s.blocks) for s in stages] == [
        (512, 512, 3),
        (512, 256, 2),
        (256, 128, 2),
        (128, 64, 2),
    ]
    assert [(s.doubles_space, s.doubles_time) for s in stages] == [
        (True, True),
        (True, True),
        (True, False),
        (False, False),
    ]
    assert PUBLISHED_TURBO_DECODER.middle_blocks == 3


def test_depthwise_flags_put_the_middle_last(golden: Path) -> None:
    config = TurboDecoderConfig.from_json(golden / "turbo_vae/B_config.json")
    assert config.middle_depthwise_kernel is None
    assert [stage.depthwise_kernel for stage in config.stages] == [5, None, 5]


def test_ignored_keys_are_listed_at_debug(golden: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="magi2.models.turbo_vae.config"):
        TurboDecoderConfig.from_json(golden / "turbo_vae/A_config.json")
    assert "ignored _class_name, aligned_blks_indices" in caplog.text
    assert "step_size" not in caplog.text


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"decoder_causal": True}, "decoder_causal is True, only False"),
        ({"patch_size": 4}, "patch_size is 4, only 2"),
        ({"patch_size_t": 2}, "patch_size_t is 2, only 1"),
        ({"latent_channels": 16}, "latent_channels is 16, only 48"),
        ({"decoder_layers_per_block": [1, 1]}, "decoder_layers_per_block has 2 entries, 4 stages need 5"),
        ({"decoder_spatio_only": [False] * 4}, "multiply time by 8, temporal_compression_ratio is 4"),
        ({"step_size": 0}, "step_size 0: both must be at least 1"),
        ({"step_size": "7"}, "step_size is '7', must be of type int"),
        ({"decoder_is_dw_conv": [0] * 5}, "decoder_is_dw_conv is 0, must be of type bool"),
        ({"decoder_dw_kernel_size": 4}, "decoder_dw_kernel_size is 4, must be odd"),
        ({"decoder_block_out_channels": [16, 24, 32, 0]}, "widths and layer counts of at least 1"),
    ],
)
def test_unsupported_values_are_refused_with_file_and_key(
    change: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"turbo.json.*{complaint}"):
        TurboDecoderConfig.from_json(write(DEMO | change, tmp_path))


def test_missing_patch_size_is_refused_like_the_default_it_stands_for(tmp_path: Path) -> None:
    content = {key: value for key, value in DEMO.items() if key != "patch_size"}
    with pytest.raises(ConfigError, match="patch_size is 4, only 2"):
        TurboDecoderConfig.from_json(write(content, tmp_path))


def test_missing_list_is_named(tmp_path: Path) -> None:
    content = {key: value for key, value in DEMO.items() if key != "decoder_spatio_only"}
    with pytest.raises(ConfigError, match="decoder_spatio_only is missing"):
        TurboDecoderConfig.from_json(write(content, tmp_path))


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"absent\.json"):
        TurboDecoderConfig.from_json(tmp_path / "absent.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"broken\.json"):
        TurboDecoderConfig.from_json(tmp_path / "broken.json")
    with pytest.raises(ConfigError, match="holds a list"):
        TurboDecoderConfig.from_json(write([], tmp_path))
