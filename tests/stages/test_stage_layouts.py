"""Which stage runs under which layout, and which layouts a profile refuses before anything is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.errors import ConfigError
from magi2.parallel.layout import ONE_RANK, ParallelLayout
from magi2.platform import ACCELERATORS
from magi2.stages.layouts import check_layout, stage_layout
from magi2.types import StageName

SPREAD = ParallelLayout.parse("sp8.cfg1.ep4")


@pytest.mark.parametrize(
    ("stage", "asked", "setting", "expected"),
    [
        (StageName.PREVIEW, "sp8.cfg1.ep4", "sp2", SPREAD),
        (StageName.REFINE, None, "sp8.cfg1.ep4", SPREAD),
        (StageName.DECODE, "sp8.cfg1.ep4", None, SPREAD),
        (StageName.DECODE, None, "sp8.cfg1.ep4", ONE_RANK),
        (StageName.ENCODE, "sp8.cfg1.ep4", "sp2", ONE_RANK),
        (StageName.MUX, "sp8.cfg1.ep4", "sp2", ONE_RANK),
        (StageName.PREVIEW, None, None, ONE_RANK),
    ],
)
def test_layout_is_the_one_asked_for_and_only_where_many_ranks_help(
    stage: StageName, asked: str | None, setting: str | None, expected: ParallelLayout
) -> None:
    assert stage_layout(stage, asked, Settings(layout=setting, device="cpu")) == expected


@pytest.mark.parametrize(("found", "used"), [(1, 1), (2, 2), (7, 4), (8, 8)])
def test_all_accelerators_are_used_by_default(found: int, used: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magi2.stages.layouts.is_cpu_only", lambda: False)
    monkeypatch.setattr("magi2.platform.current", lambda name=None: ACCELERATORS["cuda"])
    monkeypatch.setattr("magi2.platform.device_count", lambda accelerator: found)
    assert stage_layout(StageName.PREVIEW, None, Settings()) == ParallelLayout(used, 1, used)
    assert stage_layout(StageName.PREVIEW, None, Settings(device="cuda:1")) == ONE_RANK


def test_host_whose_torch_knows_no_accelerator_is_told_without_importing_torch() -> None:
    program = """
import sys
from importlib import metadata, util
metadata.version, util.find_spec = (lambda name: "2.13.0+cpu"), (lambda name: None)
from magi2.config.settings import Settings
from magi2.parallel.layout import ONE_RANK
from magi2.stages.layouts import stage_layout
from magi2.types import StageName
assert stage_layout(StageName.PREVIEW, None, Settings(store="store")) == ONE_RANK
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_heads_that_do_not_divide_are_refused_with_the_numbers_and_what_works() -> None:
    profile = load_profile("1080p", Settings().configs)
    check_layout(SPREAD, profile)
    with pytest.raises(ConfigError, match=r"24 attention and 24 key/value heads do not divide by cp 5.*nearest"):
        check_layout(ParallelLayout.parse("sp5"), profile)


def test_steps_without_guidance_are_shared_by_all_ranks_which_the_heads_have_to_allow() -> None:
    sixteen = ParallelLayout.parse("sp8.cfg2.ep8")
    lossless, draft = (
        load_profile("540p", Settings().configs, [f"preview.quality={quality}"]) for quality in ("lossless", "draft")
    )
    check_layout(sixteen, lossless)
    check_layout(ParallelLayout.parse("sp4.cfg2.ep4"), draft)
    said = r"layout sp8\.cfg2\.ep8: 24 attention .* do not divide by cp 16, in steps without guidance"
    with pytest.raises(ConfigError, match=said):
        check_layout(sixteen, draft)
