"""The decoder, its loader and its random weights against golden vectors and their promises."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from magi2.errors import CheckpointError, ContractError
from magi2.models.audio_vae.config import AudioVaeConfig, OobleckConfig, config_from_json, read_audio_config
from magi2.models.audio_vae.init import init_random_, tiny_audio_tensors
from magi2.models.audio_vae.model import AudioDecoder, Snake
from magi2.models.audio_vae.resample import resample_fourier
from magi2.models.audio_vae.state_dict import PREFIX, expected_tensors, fold_weight_norm, load_audio_decoder


def relative_l2(actual: torch.Tensor, expected: torch.Tensor) -> float:
    actual, expected = actual.cpu().double(), expected.double()
    return ((actual - expected).norm() / expected.norm()).item()


def stage_outputs(decoder: AudioDecoder, latents: torch.Tensor) -> dict[int, torch.Tensor]:
    outputs: dict[int, torch.Tensor] = {}
    x = latents.T[None]
    for index, layer in enumerate(decoder.decoder.layers):
        x = outputs[index] = layer(x)
    return outputs


@pytest.fixture(scope="module")
def published(golden: Path, device: torch.device) -> AudioDecoder:
    return load_audio_decoder(golden / "audio/tiny_stable_audio", device=device)


@pytest.fixture(scope="module")
def variant(golden: Path, device: torch.device) -> AudioDecoder:
    return load_audio_decoder(golden / "audio/tiny_variant", device=device)


@pytest.fixture
def folder(golden: Path, tmp_path: Path) -> Path:
    """A writable copy of the variant checkpoint."""
    for name in ("model_config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((golden / "audio/tiny_variant" / name).read_bytes())
    return tmp_path


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor
    save_file(tensors, folder / "model.safetensors")


def config_json(golden: Path) -> dict:
    return json.loads((golden / "audio/tiny_variant/model_config.json").read_text())


@torch.no_grad()
def test_snake_and_both_weight_norms_match_golden(golden: Path, device: torch.device) -> None:
    units = {name: t.to(device) for name, t in load_file(golden / "audio/units.safetensors").items()}
    snake = Snake(5).to(device)
    snake.alpha.copy_(units["snake.alpha"])
    snake.beta.copy_(units["snake.beta"])
    assert relative_l2(snake(units["snake.x"]), units["snake.y"].cpu()) < 1e-6

    weight = fold_weight_norm(units["conv.weight_g"], units["conv.weight_v"])
    y = torch.nn.functional.conv1d(units["wn.x"], weight, units["conv.bias"], padding=9, dilation=3)
    assert relative_l2(y, units["conv.y"].cpu()) < 1e-6

    weight = fold_weight_norm(units["convT.weight_g"], units["convT.weight_v"])
    y = torch.nn.functional.conv_transpose1d(units["wn.x"], weight, units["convT.bias"], stride=3, padding=2)
    assert relative_l2(y, units["convT.y"].cpu()) < 1e-6


@pytest.mark.parametrize("rows", [4, 9])
@torch.no_grad()
def test_published_layout_decodes_like_upstream(
    published: AudioDecoder, golden: Path, device: torch.device, rows: int
) -> None:
    expected = load_file(golden / "audio/tiny_stable_audio_decode.safetensors")
    wave = published.decode(expected[f"latent_{rows}"][None].to(device))
    assert wave.shape == (2, 2048 * rows)
    assert wave.dtype == torch.float32
    assert relative_l2(wave, expected[f"wave_{rows}"][0]) < 1e-5
    resampled = resample_fourier(wave)
    assert relative_l2(resampled.T, expected[f"resampled_{rows}"]) < 1e-5


@torch.no_grad()
def test_every_layer_matches_golden(
    published: AudioDecoder, variant: AudioDecoder, golden: Path, device: torch.device
) -> None:
    for decoder, file, rows in ((published, "tiny_stable_audio", 4), (variant, "tiny_variant", 7)):
        expected = load_file(golden / f"audio/{file}_decode.safetensors")
        for index, actual in stage_outputs(decoder, expected[f"latent_{rows}"].to(device)).items():
            assert relative_l2(actual, expected[f"stages_{rows}.layer{index}_out"]) < 1e-5, (file, index)


@torch.no_grad()
def test_elu_tanh_and_odd_strides_match_golden(variant: AudioDecoder, golden: Path, device: torch.device) -> None:
    expected = load_file(golden / "audio/tiny_variant_decode.safetensors")
    wave = variant.decode(expected["latent_7"][None].to(device))
    assert wave.shape == (2, 101)
    assert relative_l2(wave, expected["wave_7"][0]) < 1e-5
    assert relative_l2(resample_fourier(wave).T, expected["resampled_7"]) < 1e-5


@torch.no_grad()
def test_a_ten_second_clip_matches_golden(published: AudioDecoder, golden: Path, device: torch.device) -> None:
    expected = load_file(golden / "audio/decode_250_latents.safetensors")
    wave = published.decode(expected["latent"][None].to(device))
    assert wave.shape == (2, 512_000)
    assert relative_l2(wave.T.cpu()[expected["wave.index"]], expected["wave.rows"]) < 1e-5
    resampled = resample_fourier(wave)
    assert resampled.shape == (2, 441_000)
    assert relative_l2(resampled.T.cpu()[expected["resampled.index"]], expected["resampled.rows"]) < 1e-5


def test_soft_clip_is_one_more_tanh(golden: Path) -> None:
    described = config_json(golden)
    described["model"]["pretransform"]["config"]["decoder"]["soft_clip"] = True
    config = config_from_json(described)
    decoder = AudioDecoder(config)
    latents = torch.randn(1, 5, 8)
    plain = AudioDecoder(AudioVaeConfig(config.encoder, config.decoder))
    plain.load_state_dict(decoder.state_dict())
    assert torch.equal(decoder.decode(latents), torch.tanh(plain.decode(latents)))


@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_nearest_upsampling_multiplies_the_length_exactly() -> None:
    config = OobleckConfig(2, 3, (1, 2), (3, 5), 8, use_nearest_upsample=True)
    decoder = AudioDecoder(AudioVaeConfig(encoder=config, decoder=config))
    assert decoder.decode(torch.randn(1, 7, 8)).shape == (2, 7 * 15)
    assert not any(name.endswith("layers.1.1.bias") for name in decoder.state_dict())


def test_every_parameter_receives_a_gradient() -> None:
    config = OobleckConfig(2, 2, (1, 2), (2, 4), 4)
    decoder = AudioDecoder(AudioVaeConfig(encoder=config, decoder=config))
    decoder(torch.randn(2, 4, 6)).square().mean().backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())


@pytest.mark.parametrize(
    "latents", [torch.zeros(1, 7, 9), torch.zeros(7, 8), torch.zeros(2, 7, 8), torch.zeros(1, 7, 8).bfloat16()]
)
def test_latents_of_another_shape_or_dtype_are_refused(golden: Path, latents: torch.Tensor) -> None:
    decoder = load_audio_decoder(golden / "audio/tiny_variant")
    with pytest.raises(ContractError, match="audio latents"):
        decoder.decode(latents)


def test_only_decoder_tensors_are_loaded_and_the_rest_is_counted(
    golden: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="magi2.models.audio_vae"):
        decoder = load_audio_decoder(golden / "audio/tiny_stable_audio")
    assert all(name.startswith("decoder.") for name in decoder.state_dict())
    assert not any(name.endswith(("weight_g", "weight_v")) for name in decoder.state_dict())
    assert "'encoder': 183" in caplog.text
    assert "'conditioner': 1" in caplog.text


def test_missing_half_of_a_weight_norm_pair_is_named(folder: Path) -> None:
    rewrite(folder, **{f"{PREFIX}decoder.layers.0.weight_g": None})
    with pytest.raises(CheckpointError, match=r"decoder\.layers\.0\.weight"):
        load_audio_decoder(folder)


def test_unexpected_decoder_tensor_is_refused(folder: Path) -> None:
    rewrite(folder, **{f"{PREFIX}decoder.layers.9.bias": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"decoder\.layers\.9\.bias"):
        load_audio_decoder(folder)


def test_gain_of_the_wrong_axis_is_refused(folder: Path) -> None:
    rewrite(folder, **{f"{PREFIX}decoder.layers.1.layers.1.weight_g": torch.ones(1, 3, 1)})
    with pytest.raises(CheckpointError, match="one gain per index"):
        load_audio_decoder(folder)


def test_mis_shaped_tensor_is_refused(folder: Path) -> None:
    rewrite(folder, **{f"{PREFIX}decoder.layers.0.bias": torch.zeros(7)})
    with pytest.raises(CheckpointError, match=r"shape \(7,\)"):
        load_audio_decoder(folder)


def test_truncated_weights_and_absent_files_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        load_audio_decoder(folder)
    (folder / "model_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"model_config\.json: is missing"):
        load_audio_decoder(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda half: half["config"].update(antialias_activation=True), "antialias_activation"),
        (lambda half: half["config"].pop("strides"), "strides"),
        (lambda half: half["config"].update(strides=[3]), "2 c_mults for 1 strides"),
        (lambda half: half["config"].update(strides=[3, 6]), "downsampling_ratio 15"),
        (lambda half: half["config"].update(channels=0), "at least 1"),
        (lambda half: half.update(type="dac"), "'dac'"),
    ],
)
def test_unknown_architecture_is_refused_by_name(golden: Path, change, message: str) -> None:
    described = config_json(golden)
    change(described["model"]["pretransform"]["config"]["decoder"])
    with pytest.raises(CheckpointError, match=message):
        config_from_json(described)


def test_config_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not readable as JSON"):
        read_audio_config(tmp_path)


def test_expected_tensors_are_the_published_ones(golden: Path) -> None:
    listed = json.loads((golden / "audio/full_parameter_list.json").read_text())
    described = {"model": {"pretransform": {"config": listed["assumed_pretransform_config"]}}}
    shapes = expected_tensors(config_from_json(described))
    assert len(shapes) == listed["num_tensors"] == 365
    assert shapes == {PREFIX + name: tuple(entry["shape"]) for name, entry in listed["tensors"].items()}


def test_expected_tensors_cover_tiny_checkpoints(golden: Path) -> None:
    for name in ("tiny_stable_audio", "tiny_variant"):
        stored = load_file(golden / f"audio/{name}/model.safetensors")
        shapes = expected_tensors(read_audio_config(golden / f"audio/{name}"))
        assert shapes == {n: tuple(t.shape) for n, t in stored.items() if n.startswith(PREFIX)}


@pytest.mark.parametrize("name", ["tiny_stable_audio", "tiny_variant"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_checkpoint_loads_and_is_audible_without_clipping(
    golden: Path, tmp_path: Path, name: str, seed: int
) -> None:
    config = read_audio_config(golden / "audio" / name)
    tensors = tiny_audio_tensors(config, torch.Generator().manual_seed(seed))
    assert {n: tuple(t.shape) for n, t in tensors.items()} == expected_tensors(config)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "model_config.json").write_bytes((golden / "audio" / name / "model_config.json").read_bytes())
    wave = load_audio_decoder(tmp_path).decode(torch.randn(1, 125, config.decoder.latent_dim)).detach()
    deviation = wave.std(dim=1)
    assert deviation.min() > 0.01
    assert wave.abs().max() < 1.0
    assert wave.mean().abs() < 0.1 * deviation.min()


def test_random_weights_repeat_for_a_seed(golden: Path) -> None:
    config = read_audio_config(golden / "audio/tiny_variant")
    first, second = (init_random_(AudioDecoder(config), torch.Generator().manual_seed(5)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
