"""The judge on delivered files: exact scenes pass in full, and each fault is found where it is and nowhere else.

`make test` judges one clip of each kind; the others come with the marker `demo_world`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import median

import pytest
import torch
from torch import Tensor

from demo_world.judge import Verdict, judge_clip
from demo_world.judge.__main__ import main
from demo_world.judge.listening import listen
from demo_world.judge.looking import look
from demo_world.judge.verdict import judge
from demo_world.reading import Request, read_caption
from demo_world.scenes import Scene
from demo_world.sound import delivered_sound
from demo_world.takes import Take
from magi2.errors import InputError, MediaError
from magi2.media.delivery import DeliverySpec
from tests.demo_world.clip_files import preview_picture, refined_picture, write_clip

PREVIEW_FPS, REFINED_FPS = Fraction(25, 2), Fraction(25)
FAST = DeliverySpec(preset="veryfast", threads=1)

# Every motion, sound, shape and colour, both sizes and speeds.
TRUE_SCENES = [
    Scene("circle", "red", "black", "small", "slow", "right", "low"),
    Scene("square", "green", "gray", "large", "fast", "left", "mid"),
    Scene("triangle", "blue", "orange", "small", "fast", "up", "high"),
    Scene("circle", "yellow", "blue", "large", "slow", "down", "rise"),
    Scene("square", "purple", "white", "small", "fast", "down_right", "fall"),
    Scene("triangle", "white", "green", "large", "slow", "up_right", "buzz"),
    Scene("circle", "red", "gray", "small", "fast", "down_left", "silence"),
    Scene("square", "yellow", "black", "large", "slow", "up_left", "low"),
    Scene("triangle", "red", "white", "small", "slow", "bounce", "beeps"),
    Scene("circle", "green", "black", "large", "fast", "bounce", "beeps"),
    Scene("square", "blue", "gray", "small", "fast", "sway", "beeps"),
    Scene("triangle", "purple", "orange", "small", "slow", "spin", "mid"),
    Scene("square", "white", "blue", "large", "fast", "spin", "high"),
    Scene("triangle", "yellow", "gray", "small", "slow", "still", "buzz"),
]


MORE = pytest.mark.demo_world


def asked(scene: Scene) -> Request:
    """Everything that can be seen of a scene; something that rests has no speed."""
    return Request(**{**vars(scene), "speed": None if scene.motion == "still" else scene.speed})


@pytest.mark.parametrize(
    "scene",
    [pytest.param(scene, marks=() if scene.motion in ("bounce", "still") else MORE) for scene in TRUE_SCENES],
    ids=lambda scene: f"{scene.shape}-{scene.motion}-{scene.sound}",
)
def test_an_exact_preview_clip_is_right_in_every_measure(tmp_path: Path, scene: Scene) -> None:
    take = Take(scene, place_x=0.4, place_y=-0.6, pitch_step=1)
    clip = write_clip(tmp_path, preview_picture(take), delivered_sound(take), fps=PREVIEW_FPS, spec=FAST)
    verdict = judge_clip(clip, asked(scene))
    assert verdict.wrong == () and verdict.is_right and verdict.has_all_five
    assert ("sync" in verdict.passed) == (scene.sound == "beeps")
    assert len(verdict.offsets) >= (3 if scene.sound == "beeps" else 0)


@pytest.mark.parametrize("size", [pytest.param(None, marks=MORE), (512, 256)])
def test_an_exact_refined_clip_is_right_at_any_delivered_size(tmp_path: Path, size: tuple[int, int] | None) -> None:
    take = Take(Scene("triangle", "yellow", "blue", "small", "fast", "sway", "beeps"))
    spec = replace(FAST, size=size, fit="scale")
    clip = write_clip(tmp_path, refined_picture(take), delivered_sound(take), fps=REFINED_FPS, spec=spec)
    assert judge_clip(clip, asked(take.scene)).wrong == ()


CLIP = Scene("square", "red", "blue", "small", "slow", "bounce", "beeps")


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    take = Take(CLIP)
    folder = tmp_path_factory.mktemp("clip")
    return write_clip(folder, preview_picture(take), delivered_sound(take), fps=PREVIEW_FPS, spec=FAST)


@pytest.mark.parametrize(
    ("measure", "other"),
    [
        ("colour", replace(CLIP, colour="green")),
        ("background", replace(CLIP, background="gray")),
        ("shape", replace(CLIP, shape="triangle")),
        ("size", replace(CLIP, size="large")),
        ("speed", replace(CLIP, speed="fast")),
        ("motion", replace(CLIP, motion="sway")),
        ("sound", replace(CLIP, sound="rise")),
    ],
)
def test_a_clip_of_another_scene_is_wrong_in_exactly_what_differs(delivered: Path, measure: str, other: Scene) -> None:
    assert judge_clip(delivered, asked(other)).wrong == (measure,)


def judge_decoded(picture: Tensor, sound: Tensor, request: Request) -> Verdict:
    """The verdict on pixels [1, 3, F, H, W] and samples before they are encoded."""
    return judge(look(picture[0].permute(1, 2, 3, 0), fps=12.5), listen(sound, rate_hz=44_100), request)


@pytest.mark.parametrize("shift_s", [0.2, *(pytest.param(shift_s, marks=MORE) for shift_s in (0.5, -0.4))])
def test_beeps_beside_their_contacts_fail_the_sync_alone(tmp_path: Path, shift_s: float) -> None:
    take = Take(CLIP)
    late = delivered_sound(take).roll(round(shift_s * 44_100), dims=1)
    verdict = judge_clip(write_clip(tmp_path, preview_picture(take), late, fps=PREVIEW_FPS, spec=FAST), asked(CLIP))
    assert verdict.wrong == ("sync",)
    assert median(verdict.offsets) == pytest.approx(abs(shift_s), abs=0.05)


def test_swapped_sound_fails_the_sound_alone(tmp_path: Path) -> None:
    picture, sound = Take(CLIP), Take(replace(CLIP, motion="still", sound="fall"))
    clip = write_clip(tmp_path, preview_picture(picture), delivered_sound(sound), fps=PREVIEW_FPS, spec=FAST)
    assert judge_clip(clip, asked(CLIP)).wrong == ("sound",)


def test_a_frozen_clip_fails_by_its_motion_and_what_follows_from_it(tmp_path: Path) -> None:
    take = Take(CLIP)
    frozen = preview_picture(take)[:, :, :1].expand(-1, -1, 125, -1, -1)
    clip = write_clip(tmp_path, frozen, delivered_sound(take), fps=PREVIEW_FPS, spec=FAST)
    assert judge_clip(clip, asked(CLIP)).wrong == ("speed", "motion")


@pytest.mark.parametrize("kind", [pytest.param("black", marks=MORE), "noise"])
def test_black_and_noise_show_nothing_that_was_asked_for(tmp_path: Path, kind: str) -> None:
    size = (1, 3, 125, 64, 128)
    noise = torch.rand(size, generator=torch.Generator().manual_seed(1)) * 2 - 1
    picture = noise if kind == "noise" else torch.full(size, -1.0)
    clip = write_clip(tmp_path, picture, torch.zeros(2, 441_000), fps=PREVIEW_FPS, spec=FAST)
    verdict = judge_clip(clip, asked(replace(CLIP, sound="low")))
    assert set(verdict.wrong) == {"colour", "background", "shape", "size", "speed", "motion", "sound"}
    assert verdict.measured.shape is None and verdict.measured.sound == "silence"


def test_white_noise_is_no_tone(tmp_path: Path) -> None:
    samples = torch.randn(2, 441_000, generator=torch.Generator().manual_seed(2)) * 0.2
    verdict = judge_decoded(preview_picture(Take(CLIP)), samples, asked(replace(CLIP, sound="mid")))
    assert verdict.wrong == ("sound",)


def test_what_the_caption_leaves_open_is_not_judged(delivered: Path) -> None:
    verdict = judge_clip(
        delivered, read_caption("a red square bounces on the floor on a blue background, with a low tone")
    )
    assert verdict.wrong == ("sound",) and not {"size", "speed", "sync"} & set(verdict.passed)


def test_the_command_says_what_it_measured(delivered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    caption = "A small red square bounces slowly on the floor on a blue background, with {}."
    assert main([str(delivered), "--expect", caption.format("a beep at every bounce")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["right"] and answer["measured"]["motion"] == "bounce" and answer["offsets"]
    assert main([str(delivered), "--expect", caption.format("a low tone")]) == 1
    assert json.loads(capsys.readouterr().out)["wrong"] == ["sound"]
    assert main([str(delivered), "--expect", "a red fox in snow"]) == 2
    assert "fox" in capsys.readouterr().err


def test_a_file_that_is_no_clip_is_refused(tmp_path: Path, delivered: Path) -> None:
    with pytest.raises(MediaError, match="no such media file"):
        judge_clip(tmp_path / "absent.mp4", asked(CLIP))
    with pytest.raises(MediaError, match="no sound"):
        judge_clip(delivered.with_name("picture.mkv"), asked(CLIP))
    with pytest.raises(InputError):
        read_caption("")
