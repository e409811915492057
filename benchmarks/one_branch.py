"""What a step without guidance takes against a guided one: `python -m benchmarks.one_branch`.

The 36 sparse and 4 dense layers of the preview at 540p, timed one of each on this device with one branch and with both;
bf16, random weights. Embedders and velocity heads are not in it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

from benchmarks.installed import measured_set
from magi2.acceptance.measure import timed
from magi2.acceptance.preview_checks import prepare
from magi2.acceptance.preview_shapes import (
    AUDIO_ROWS,
    CONFIG,
    DENSE,
    PREVIEW_CLIPS,
    SPARSE,
    TEXT_ROWS,
    clip_layout,
    make_layer,
    make_layout,
    make_streams,
)
from magi2.models.preview.fast_ops import fast_ops


def main(arguments: list[str] | None = None) -> int:
    """Time both, write and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.one_branch", description=__doc__)
    parser.add_argument("--clip", choices=PREVIEW_CLIPS, default="540p")
    parser.add_argument("--out", type=Path, default=Path("one_branch.json"))
    chosen = parser.parse_args(arguments)
    device, clip = torch.device("cuda"), PREVIEW_CLIPS[chosen.clip]
    layouts = {
        "guided": clip_layout(clip, device),
        "unguided": make_layout((0, clip.branch), [(clip.cells, AUDIO_ROWS, TEXT_ROWS)], device),
    }
    sparse_layers = len(CONFIG.moe_config.moe_layers)
    counts = {SPARSE: sparse_layers, DENSE: CONFIG.num_layers - sparse_layers}
    milliseconds = dict.fromkeys(layouts, 0.0)
    for index, count in counts.items():
        layer = prepare(make_layer(index, device), fast_ops())
        for name, layout in layouts.items():
            streams = make_streams(sum(layout.group_sizes), device)
            milliseconds[name] += count * timed(lambda layer=layer, s=streams, at=layout: layer(s, at))  # type: ignore[misc]
    ratio = milliseconds["unguided"] / milliseconds["guided"]
    figures = {"clip": clip.name, "layers_ms": milliseconds, "ratio": ratio, "versions": measured_set(device)}
    chosen.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
