"""The steps themselves, on the CPU with tiny weights: what they find, what is a difference, what cannot be run."""

from __future__ import annotations

import itertools
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
import yaml

from magi2 import platform
from magi2.acceptance.floors import step_floor
from magi2.acceptance.measure import Ceilings
from magi2.acceptance.plan import STEPS, Difference, Figure, NotRunError, Options
from magi2.acceptance.preview_shapes import CONFIG, PREVIEW_CLIPS
from magi2.acceptance.site import Site
from magi2.acceptance.stack import Parts, build, denoise, first_difference, stack
from magi2.acceptance.steps import collectives, kernels, preview, refiner, store, text, weights
from magi2.checkpoints.hollow import make_hollow
from magi2.checkpoints.layout import COMPONENTS, CheckpointFolder
from magi2.config.load import load_profile
from magi2.config.settings import Settings
from magi2.errors import ConfigError
from magi2.models.preview.layer import Layer
from magi2.models.refiner.config import RefinerConfig
from magi2.parallel.mesh import Mesh

CPU = torch.device("cpu")
PARTS = {"sparse_layer": 197.9, "dense_layer": 174.4}
SMALL = {"extends": str(Settings().configs / "profiles" / "tiny.yaml"), "preview": {"width": 32, "height": 32}}


def site_of(folder: Path, root: Path | None, **more: object) -> Site:
    """A tiny profile's, smaller still, on the CPU."""
    profile = folder / "small.yaml"
    profile.write_text(yaml.safe_dump({**SMALL, "refiner": {"width": 80, "height": 32}}))
    settings = Settings(ckpt_root=root, store=str(folder / "store"), device="cpu")
    return Site(Options((str(profile),), **more), settings, folder, Mesh.single(CPU))


def found(step: object, site: Site) -> tuple[dict[str, Figure], list[str]]:
    every = list(step.run(site))
    figures = {each.name: each for each in every if isinstance(each, Figure)}
    return figures, [each.text for each in every if isinstance(each, Difference)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Site:
    return site_of(tmp_path_factory.mktemp("accept"), tiny_checkpoint)


def test_every_step_has_a_module_or_is_the_command_s_own() -> None:
    for step in STEPS:
        if step.name not in ("airflow", "rehearse"):
            assert callable(import_module(f"magi2.acceptance.steps.{step.name}").run)


def test_the_preview_is_measured_by_part_with_the_given_weights(site: Site) -> None:
    figures, differences = found(preview, site)
    assert not differences
    assert figures["weights"].value == "given" and figures["layers"].value == figures["layers of the model"].value
    step, whole = figures["32x32.step"], figures["32x32.whole_step"]
    assert step.value == whole.value and not whole.extrapolated
    assert {"32x32.sparse_layer", "32x32.dense_layer", "32x32.sparse_mlp", "32x32.peak"} <= figures.keys()


def test_fewer_layers_have_random_weights(site: Site) -> None:
    whole = site.profiles[0].architectures.preview
    model, source = preview._model(site, stack(whole, 3), whole)
    assert source == "random" and len(model.block.layers) == 3
    assert preview._model(site, whole, whole)[1] == "given"


def test_random_weights_come_in_the_format_that_is_asked_for(site: Site) -> None:
    options = replace(site.options, weights="fp8", layers=3)
    figures, differences = found(preview, replace(site, options=options))
    assert (figures["format"].value, figures["weights"].value) == ("fp8", "random")
    assert not differences


def test_the_format_that_is_asked_for_is_built_where_the_card_takes_it(
    tmp_path: Path, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_of(tmp_path, tiny_checkpoint, weights="fp8")
    whole = site.profiles[0].architectures.preview
    model, source = preview._model(site, whole, whole)
    assert (model.weights, source) == ("fp8", "given")
    monkeypatch.setattr(platform, "fp8_refusal", lambda *, accelerator: "no FP8 here")
    with pytest.raises(ConfigError, match="no FP8 here"):
        preview.fitting_layers(site, whole)


def test_what_was_not_built_is_extrapolated_by_the_kind_of_its_layers_and_called_so() -> None:
    ran = preview.Run("896x512", (32, 32, 56), 4000.0, 3990.0, PARTS, waited_ms=0.0, sent_bytes=0.0, peak_bytes=0)
    figures = {each.name: each for each in preview.figures(ran, stack(CONFIG, 20), CONFIG, {20: None, 40: 6100.0})}
    whole = figures["896x512.whole_step"]
    assert whole.extrapolated and whole.value == 4000.0 + 20 * PARTS["sparse_layer"] and whole.floor == 6100.0
    assert figures["896x512.outside layers"].value == pytest.approx(3990 - 16 * 197.9 - 4 * 174.4)
    every = {each.name: each for each in preview.figures(ran, CONFIG, CONFIG, {40: 6100.0})}
    assert every["896x512.whole_step"].value == 4000.0 and not every["896x512.whole_step"].extrapolated


def test_the_refiner_is_measured_and_a_profile_without_one_has_nothing_to_run(site: Site, tmp_path: Path) -> None:
    figures, differences = found(refiner, site)
    assert not differences and figures["weights"].value == "given"
    assert figures["80x32.step"].value == figures["80x32.whole_step"].value > 0
    without = Site(Options(("tiny-preview",)), site.settings, tmp_path, site.mesh)
    with pytest.raises(NotRunError, match="none of the profiles has a refiner"):
        found(refiner, without)


def test_other_bits_the_second_time_are_a_difference(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that asks a generator of its own repeats nothing."""

    def restless(site: Site, config: RefinerConfig, whole: RefinerConfig) -> tuple[torch.nn.Module, str]:
        model = refiner.random_refiner(site, config)
        generator = torch.Generator().manual_seed(0)
        model.register_forward_hook(lambda module, inputs, out: out + torch.randn(out.shape, generator=generator))
        return model, "random"

    monkeypatch.setattr(refiner, "_model", restless)
    _, differences = found(refiner, site)
    assert differences == ["80x32: the same latents gave other bits the second time"]


def test_watching_parts_leaves_the_model_as_it_was(site: Site) -> None:
    model = build(site.ranks, site.profiles[0].architectures.preview, torch.float32)
    before = denoise(model, (1, 2, 2), 2, audio_rows=2, text_rows=2).digest
    with Parts().watching(model):
        assert denoise(model, (1, 2, 2), 2, audio_rows=2, text_rows=2).digest == before
    assert not [module for module in model.modules() if {"forward", "from_normed"} & vars(module).keys()]


@pytest.mark.parametrize("part", ["attention", "mlp", "coefficients"])
def test_the_first_part_that_does_not_repeat_its_bits_is_named(
    site: Site, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the third run, since what happens seldom may not come at once."""
    model = build(site.ranks, site.profiles[0].architectures.preview, torch.float32)
    rows = {"audio_rows": 2, "text_rows": 2}
    assert first_difference(model, (1, 2, 2), **rows) is None
    layer = model.block.layers[1]
    kind, method = (Layer, "_coefficients") if part == "coefficients" else (type(getattr(layer, part)), "from_normed")
    calm, calls = getattr(kind, method), itertools.count()

    def restless(self: torch.nn.Module, *given: object) -> object:
        out = calm(self, *given)
        if self in (layer, getattr(layer, part, None)) and next(calls) // (2 if kind is Layer else 1) == 2:
            return out._replace(post=out.post + 1e-3) if kind is Layer else out + 1e-3
        return out

    monkeypatch.setattr(kind, method, restless)
    found = first_difference(model, (1, 2, 2), **rows)
    assert found is not None and found.startswith("layer 1, ") and found.endswith(part)


def test_weights_of_other_networks_and_damaged_ones_are_differences(site: Site, tmp_path: Path) -> None:
    figures, differences = found(weights, site)
    assert not differences and figures["preview.tensors"].value > 100
    other = Site(Options(("1080p",)), site.settings, tmp_path)
    _, differences = found(weights, other)
    assert any(each.startswith("preview: ") for each in differences)
    with pytest.raises(NotRunError, match="MAGI2_CKPT_ROOT is not set"):
        found(weights, site_of(tmp_path, None))


def test_the_store_is_tried_and_left_as_it_was(site: Site) -> None:
    figures, differences = found(store, site)
    assert not differences
    assert figures["store.write"].unit == "ms" and "none yet" in figures["catalog"].value
    assert not list(Path(site.settings.store).rglob("accept/*"))


def test_the_text_encoder_repeats_its_bits(site: Site, tmp_path: Path) -> None:
    figures, differences = found(text, site)
    assert not differences and figures["prompt"].unit == "ms" and not figures["prompt"].extrapolated
    with pytest.raises(NotRunError, match="too large for a CPU"):
        found(text, site_of(tmp_path, None))


@pytest.mark.faults
def test_hollow_weights_are_as_they_should_be_and_no_stage_reads_them(tmp_path: Path) -> None:
    """Names, shapes and dtypes of all six components equal their tables; one that is stored otherwise is told."""
    published = load_profile("1080p", Settings().configs).architectures
    make_hollow(tmp_path / "hollow", published)
    site = Site(Options(("1080p",)), Settings(ckpt_root=tmp_path / "hollow", device="cpu"), tmp_path)
    figures, differences = found(weights, site)
    assert not differences
    assert {f"{component}.hollow" for component in COMPONENTS} <= figures.keys()
    assert site.weights("preview") is None
    shard = CheckpointFolder(tmp_path / "hollow").files("refiner")[0]
    with shard.open("r+b") as file:
        header = file.read(2**16).replace(b'"BF16"', b'"F16" ', 1)
        file.seek(0)
        file.write(header)
    _, (other,) = found(weights, site)
    assert other.startswith("refiner: 1 tensors are of another dtype than published")


def test_what_cannot_be_run_here_says_why(site: Site) -> None:
    with pytest.raises(NotRunError, match="plain torch computes"):
        found(kernels, site)
    with pytest.raises(NotRunError, match="one rank"):
        found(collectives, site)


def test_as_many_layers_are_built_as_the_cards_hold(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On one card of 141 GB the published preview has about half its layers, on a huge one all."""
    published = Site(Options(("540p",)), Settings(), tmp_path, site.mesh)
    whole = load_profile("540p", Settings().configs).architectures.preview
    monkeypatch.setattr(platform, "current", lambda name=None: platform.ACCELERATORS["cuda"])
    for gib, least, most in ((139, 18, 24), (1000, 40, 40)):
        memory = platform.MemoryStats(0, 0, gib * 2**30)
        monkeypatch.setattr(platform, "memory_stats", lambda accelerator, memory=memory: memory)
        assert least <= preview.fitting_layers(published, whole) <= most


def test_a_stack_keeps_dense_layers_at_both_ends() -> None:
    half = stack(CONFIG, 20)
    assert half.mm_layers == (0, 1, 18, 19) and half.moe_config.moe_layers == tuple(range(2, 18))
    assert stack(CONFIG, 40) is CONFIG and stack(CONFIG, 3).moe_config.moe_layers == (1,)


def test_a_step_s_floor_grows_with_layers_and_with_slower_ceilings() -> None:
    fast, slow = Ceilings(4e12, 8e14), Ceilings(2e12, 4e14)
    floor = step_floor(CONFIG, PREVIEW_CLIPS["272p"], fast)
    assert step_floor(CONFIG, PREVIEW_CLIPS["272p"], slow) == pytest.approx(2 * floor)
    assert (
        step_floor(stack(CONFIG, 20), PREVIEW_CLIPS["272p"], fast)
        < 0.52 * floor
        < step_floor(CONFIG, PREVIEW_CLIPS["540p"], fast)
    )


@pytest.mark.slow
@pytest.mark.faults
def test_a_clip_is_encoded_twice_to_the_same_bytes(tmp_path: Path) -> None:
    from magi2.acceptance.steps import mux

    figures, differences = found(mux, site_of(tmp_path, None))
    assert not differences and figures["clip"].unit == "ms"
