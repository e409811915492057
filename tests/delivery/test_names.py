"""Names of delivered files: what a template may be, what fills it, and what no file system would take."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

import pytest

from magi2.delivery.names import (
    COMPANIONS,
    DEFAULT_TEMPLATE,
    MAX_PART_BYTES,
    NameContext,
    check_name,
    check_template,
    companion,
    fill,
    folded,
    safe_value,
    without_collisions,
)
from magi2.errors import InputError
from magi2.types import Clip, Delivery

CLIP = Clip("a cat", 7, "1080p", "0" * 64)


def test_the_default_template_is_batch_name_seed_and_profile() -> None:
    assert fill(DEFAULT_TEMPLATE, CLIP, NameContext("monday", "shot 3")) == "monday/shot_3_7_1080p.mp4"


@pytest.mark.parametrize(
    "template",
    [
        "{name.__class__}.mp4",
        "{name[0]}.mp4",
        "{seed:>10}.mp4",
        "{seed!r}.mp4",
        "{}.mp4",
        "{0}.mp4",
        "{prompt}.mp4",
        "{{name}}.mp4",
        "{name.mp4",
        "name}.mp4",
        "{name}",
        "{name}.mov",
        ".mp4",
        "a/.mp4",
        "/etc/{name}.mp4",
        "../{name}.mp4",
        "a/../{name}.mp4",
        "./{name}.mp4",
        "a//{name}.mp4",
        "a\\{name}.mp4",
        "C:/{name}.mp4",
        "s3://bucket/{name}.mp4",
        "a\0{name}.mp4",
        "a\u202e{name}.mp4",
        "a\n{name}.mp4",
        "con/{name}.mp4",
        "LPT1.txt/{name}.mp4",
        "nul.mp4",
        "COM¹.mp4",
        "a./{name}.mp4",
        "a /{name}.mp4",
        ".hidden/{name}.mp4",
        f"{'x' * 201}.mp4",
        f"{'/'.join(['x' * 100] * 8)}.mp4",
        "\ud800.mp4",
    ],
)
def test_a_template_that_could_lead_elsewhere_or_is_no_name_is_refused(template: str) -> None:
    with pytest.raises(InputError, match="delivery name"):
        check_template(template)


@pytest.mark.parametrize("value", ["..", "../../x", "/", "a/b", "con", "nul.txt", "a\\b", "x:y", "\0", "..\u2028", ""])
def test_what_fills_a_field_never_leads_elsewhere(value: str) -> None:
    name = fill("{batch}/{name}_{seed}.mp4", CLIP, NameContext(value, value))
    assert name.count("/") == 1 and ".." not in name and check_name(name) == name


def test_the_result_is_looked_at_again_after_filling() -> None:
    with pytest.raises(InputError, match="device on Windows"):
        fill("co{name}.mp4", CLIP, NameContext("monday", "n"))
    with pytest.raises(InputError, match=f"longer than {MAX_PART_BYTES} bytes"):
        fill("{name}{name}{name}.mp4", CLIP, NameContext("monday", "n" * 200))


def test_a_long_name_is_cut_between_characters() -> None:
    value = safe_value("片" * 200)
    assert len(value.encode()) <= 80 and set(value) == {"片"}


def test_names_are_composed() -> None:
    decomposed = unicodedata.normalize("NFD", "é")
    assert safe_value(decomposed) == "é" == check_template(f"{decomposed}.mp4").removesuffix(".mp4")
    with pytest.raises(InputError, match="composed"):
        check_name(f"{decomposed}.mp4")


@pytest.mark.parametrize(("one", "other"), [("a", "A"), ("straße", "STRASSE"), ("É", "é"), ("same", "same")])
def test_of_names_that_some_file_system_takes_for_one_all_get_their_clips_id(one: str, other: str) -> None:
    clips = [
        replace(CLIP, seed=seed, deliveries=(Delivery("studio", f"{name}.mp4"),))
        for seed, name in ((1, one), (2, other))
    ]
    for order in (clips, clips[::-1]):
        settled = without_collisions(order)
        names = {clip.seed: clip.deliveries[0].name for clip in settled}
        assert names == {1: f"{one}_{clips[0].short_id}.mp4", 2: f"{other}_{clips[1].short_id}.mp4"}
        assert len({folded(name) for name in names.values()}) == 2


def test_a_clip_collides_with_what_lies_beside_another() -> None:
    names = ["shot.mp4", "shot.contact_sheet.mp4"]
    clips = [replace(CLIP, seed=seed, deliveries=(Delivery("studio", name),)) for seed, name in enumerate(names)]
    settled = [clip.deliveries[0].name for clip in without_collisions(clips)]
    beside = [companion(name, ending) for name in settled for ending in COMPANIONS]
    assert len(set(beside)) == len(beside)


def test_other_targets_and_other_names_do_not_collide() -> None:
    deliveries = [Delivery("studio", "a.mp4"), Delivery("archive", "a.mp4"), Delivery("studio", "b.mp4")]
    clips = tuple(replace(CLIP, seed=seed, deliveries=(each,)) for seed, each in enumerate(deliveries))
    assert without_collisions(clips) == clips
    assert [clip.deliveries for clip in without_collisions(clips)] == [clip.deliveries for clip in clips]
