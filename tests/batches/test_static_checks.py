"""What is certain to fail is found by the plan: prompts that are too long, weights that are not whole, layouts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from magi2.artifacts.local import LocalStore
from magi2.batches.batch_file import Row, make_batch
from magi2.batches.intake import plan_location
from magi2.batches.plan import BatchOptions
from magi2.batches.static_checks import ClipCheck, Site, check_profiles
from magi2.checkpoints.layout import CheckpointFolder
from magi2.config.profile import Profile
from magi2.config.profiles import Profiles
from magi2.config.settings import Settings
from magi2.errors import CheckpointError, ConfigError, InputError
from tests.render_helpers import CONFIGS, make_clip, small_profile

LONG = "word " * 19_000


def rows_refused(checkpoint: Path, *prompts: str, overrides: tuple[str, ...] = (), endpoint: bool = False) -> list[str]:
    """Why rows with these prompts are refused."""
    settings = Settings(ckpt_root=checkpoint, pe_base_url="http://127.0.0.1:1/v1" if endpoint else None)
    profiles = Profiles(CONFIGS, "tiny-preview", overrides)
    profile = profiles(None)
    check = ClipCheck(Site(settings, CheckpointFolder(checkpoint)), lambda digest: profile)
    rows = [Row(number, {"prompt": prompt}) for number, prompt in enumerate(prompts, start=1)]
    return [str(row) for row in make_batch(rows, profiles, folder=checkpoint, check=check).bad_rows]


@pytest.mark.parametrize("mode", ["off", "offline"])
def test_prompt_of_too_many_tokens_is_its_rows_fault_with_count_and_limit(tiny_checkpoint: Path, mode: str) -> None:
    """Before, the plan took it and encode failed, once weights had been loaded."""
    (refused,) = rows_refused(tiny_checkpoint, "a kite", LONG, overrides=(f"enhancement.mode='{mode}'",))
    assert refused.startswith("line 2: prompt: ") and "tokens, limit 7,000" in refused


def test_limit_is_the_profiles_and_no_token_less(tiny_checkpoint: Path) -> None:
    prompt = "a red fox walks in the snow"  # seven tokens
    assert rows_refused(tiny_checkpoint, prompt, overrides=("text.max_tokens=7",)) == []
    (refused,) = rows_refused(tiny_checkpoint, prompt, overrides=("text.max_tokens=6",))
    assert "7 tokens, limit 6" in refused


def test_prompt_that_is_cut_by_wish_or_rewritten_by_a_model_is_not_counted(tiny_checkpoint: Path) -> None:
    assert rows_refused(tiny_checkpoint, LONG, overrides=("text.on_overflow=truncate",)) == []
    assert rows_refused(tiny_checkpoint, LONG, overrides=("enhancement.mode=llm",), endpoint=True) == []


def test_caption_that_no_model_rewrites_is_counted_as_it_is(tiny_checkpoint: Path) -> None:
    caption = json.dumps({"global_layer": {"context": "a shore", "description": LONG}, "dynamic_layer": {}})
    (refused,) = rows_refused(tiny_checkpoint, caption, overrides=("enhancement.mode=llm",), endpoint=True)
    assert "limit 7,000" in refused or "cannot be used" in refused


def test_plan_of_a_file_lists_the_rows_that_are_too_long(tiny_checkpoint: Path, tmp_path: Path) -> None:
    file = tmp_path / "night.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in ("a kite", LONG)))
    settings, store = Settings(ckpt_root=tiny_checkpoint), LocalStore(tmp_path / "store")
    with pytest.raises(InputError, match=r"1 bad rows, nothing was started:\n  line 2: prompt: .* limit 7,000"):
        plan_location(str(file), settings=settings, store=store, profile="tiny-preview", options=BatchOptions())


@pytest.fixture
def weights(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    """Weights that a test may harm."""
    return shutil.copytree(tiny_checkpoint, tmp_path / "weights")


def checked(weights: Path, profile: Profile | None = None, **settings: str) -> None:
    profile = profile or small_profile(refined=True)
    site = Site(Settings(ckpt_root=weights, **settings), CheckpointFolder(weights))  # type: ignore[arg-type]
    check_profiles([profile], [make_clip(profile)], site)


def test_weights_that_are_whole_pass(weights: Path) -> None:
    checked(weights)


@pytest.mark.parametrize("place", ["preview", "refiner", "text_encoder", "turbo_vae", "stable-audio-open-1.0"])
def test_missing_weights_are_named(weights: Path, place: str) -> None:
    shutil.rmtree(weights / place)
    with pytest.raises(CheckpointError, match=f"{place}.* is missing"):
        checked(weights)


@pytest.mark.parametrize("place", ["preview", "refiner", "text_encoder", "stable-audio-open-1.0"])
def test_weights_that_are_cut_off_are_named(weights: Path, place: str) -> None:
    file = sorted((weights / place).glob("*.safetensors"))[-1]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=f"{file.name} is damaged or cut off"):
        checked(weights)


def test_shard_that_the_index_lists_and_the_folder_lacks_is_named(weights: Path) -> None:
    file = sorted((weights / "refiner").glob("*.safetensors"))[-1]
    file.unlink()
    with pytest.raises(CheckpointError, match=f"{file.name} is missing, which model.safetensors.index.json lists"):
        checked(weights)


def test_shard_without_a_tensor_of_the_index_is_named(weights: Path) -> None:
    index = weights / "refiner" / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["one.more.weight"] = next(iter(content["weight_map"].values()))
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"lacks one\.more\.weight"):
        checked(weights)


def test_weights_that_no_stage_of_the_profile_reads_may_be_missing(weights: Path) -> None:
    shutil.rmtree(weights / "refiner")
    checked(weights, small_profile())


def test_layout_under_which_the_model_cannot_run_is_refused(weights: Path) -> None:
    with pytest.raises(ConfigError, match="layout"):
        checked(weights, layout="sp7")


def test_negative_prompt_of_too_many_tokens_is_the_profiles_fault(weights: Path) -> None:
    with pytest.raises(ConfigError, match=r"profile tiny-preview: its negative prompt: .* tokens, limit 3"):
        checked(weights, small_profile("text.max_tokens=3"))
