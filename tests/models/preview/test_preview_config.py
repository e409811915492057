"""The architecture's configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magi2.config.strict import validate
from magi2.errors import ConfigError
from magi2.models.preview.config import (
    AttnGating,
    AttnSinks,
    DataProxyConfig,
    MhcConfig,
    MoeConfig,
    PreviewConfig,
)
from tests.models.preview.preview_goldens import tiny_config

PUBLISHED = Path(__file__).parents[3] / "configs" / "models" / "preview.json"


def test_defaults_are_the_published_file() -> None:
    published = json.loads(PUBLISHED.read_text())
    assert validate(PreviewConfig, published, PUBLISHED.name) == PreviewConfig()


def test_derived_widths_are_the_published_ones() -> None:
    config = PreviewConfig()
    assert (config.num_heads, config.stream_width, config.intermediate_size) == (24, 12288, 8192)
    assert [config.weight_sets(layer) for layer in (0, 1, 2, 37, 38, 39)] == [3, 3, 1, 1, 3, 3]
    assert tiny_config().intermediate_size == 256


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: AttnGating(enable=False), "attn_gating.enable"),
        (lambda: AttnSinks(enable=False), "attn_sinks.enable"),
        (lambda: AttnSinks(sink_token_num=0), "attn_sinks.sink_token_num"),
        (lambda: MhcConfig(enable=False), "mhc_config.enable"),
        (lambda: MoeConfig(score_func="softmax"), "moe_config.score_func"),
        (lambda: MoeConfig(top_k=257), "moe_config.top_k"),
        (lambda: DataProxyConfig(patch_size=2), "data_proxy.patch_size"),
        (lambda: DataProxyConfig(t_patch_size=2), "data_proxy.t_patch_size"),
        (lambda: DataProxyConfig(spatial_rope_interpolation="intra"), "spatial_rope_interpolation"),
        (lambda: DataProxyConfig(add_time_token=True), "add_time_token"),
        (lambda: PreviewConfig(mm_layers=(0, 40)), "mm_layers"),
        (lambda: PreviewConfig(mm_layers=(0, 0)), "mm_layers"),
        (lambda: PreviewConfig(num_layers=4), "mm_layers"),
        (lambda: PreviewConfig(head_dim=100), "head_dim"),
        (lambda: PreviewConfig(hidden_size=3000), "hidden_size"),
        (lambda: PreviewConfig(num_query_groups=7), "num_query_groups"),
        (lambda: PreviewConfig(params_dtype="float16"), "params_dtype"),
        (lambda: PreviewConfig(activation_type="gelu"), "activation_type"),
        (lambda: PreviewConfig(layer_activation_types=("gelu",)), "layer_activation_types"),
        (lambda: PreviewConfig(intermediate_factor=0.01), "intermediate_factor"),
        (lambda: PreviewConfig(moe_config=MoeConfig(num_heads=7)), "split_merge_intermediate_size"),
        (lambda: replace(tiny_config(), data_proxy=DataProxyConfig(time_channel_dim=2000)), "time_channel_dim"),
    ],
)
def test_impossible_architecture_is_refused_naming_the_field(build: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build()
