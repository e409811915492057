"""Rows that set keys of their profile, and rows that stand for several clips, as clips."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from magi2.batches.batch_file import Batch, make_batch, read_batch
from magi2.batches.placing import Placing
from magi2.batches.rows import ROW_COLUMNS, Row
from magi2.batches.spread import NO_SPREAD, Spread
from magi2.config.load import load_negative_prompt, load_profile
from magi2.config.profile import Profile
from magi2.config.profiles import Profiles
from magi2.errors import InputError
from magi2.inputs.limits import MAX_PROFILES, MAX_ROWS
from magi2.types import derive_seed, variant_seed
from tests.render_helpers import CONFIGS

TINY = load_profile("tiny", CONFIGS)
KITE = {"prompt": "a kite", "name": "kite"}
PLACES = Placing(batch="night", target="films", name="{name}.mp4", require=lambda name: name)


def batch_of(*values: dict[str, Any], spread: Spread = NO_SPREAD, placing: Placing = PLACES) -> Batch:
    profiles = Profiles(CONFIGS, "tiny")
    rows = [Row(number, value) for number, value in enumerate(values, start=1)]
    return make_batch(rows, profiles, folder=Path(), placing=placing, spread=spread, derive=profiles.derive)


def reason_of(*values: dict[str, Any], **more: Any) -> str:
    (bad,) = batch_of(*values, **more).bad_rows
    return str(bad)


def read(tmp_path: Path, name: str, text: str) -> Batch:
    file = tmp_path / name
    file.write_text(text)
    profiles = Profiles(CONFIGS, "tiny")
    return read_batch(file, profiles, derive=profiles.derive)


def test_a_rows_settings_make_a_profile_of_their_own_that_is_named_by_them() -> None:
    batch = batch_of(KITE, {**KITE, "preview.steps": 4}, {"prompt": "a dune", "preview": {"steps": 4}})
    plain, quick, nested = batch.clips
    assert plain.profile_digest == TINY.digest() != quick.profile_digest == nested.profile_digest
    assert [clip.profile_name for clip in batch.clips] == ["tiny", *["tiny + preview.steps=4"] * 2]
    assert {digest: profile.preview.steps for digest, profile in batch.used_profiles.items()} == {
        plain.profile_digest: TINY.preview.steps,
        quick.profile_digest: 4,
    }


def test_columns_of_a_table_are_the_same_settings(tmp_path: Path) -> None:
    table = "prompt,preview.steps,preview.guidance.cfg_rescale,tags\na kite,4,0.5,sea\na dune,,,\n"
    lines = [{"prompt": "a kite", "preview": {"steps": 4, "guidance": {"cfg_rescale": 0.5}}, "tags": "sea"}, "a dune"]
    of_table = read(tmp_path, "a.csv", table).require_good()
    of_lines = read(tmp_path, "a.jsonl", "\n".join(map(json.dumps, lines))).require_good()
    assert of_table.clips == of_lines.clips and len(of_table.used_profiles) == 2


@pytest.mark.parametrize(
    "same",
    [
        {"preview.steps": TINY.preview.steps},
        {"preview.quality": "lossless"},
        {"negative_prompt": load_negative_prompt(TINY, CONFIGS)},
        {"preview.steps": None, "refiner.steps": ""},
        {"variants": 1},
        {"matrix": False},
    ],
)
def test_what_the_profile_says_already_gives_the_same_clip(same: dict[str, Any]) -> None:
    (clip,) = batch_of(KITE, {**KITE, **same}).clips
    assert (clip.profile_name, clip.names) == ("tiny", ("kite", "kite"))


def test_a_negative_prompt_is_text_and_taken_as_readers_see_it() -> None:
    batch = batch_of({**KITE, "negative_prompt": "no  fog\u200b"}, {**KITE, "text.negative_text": "no fog"})
    (clip,) = batch.clips
    assert clip.profile_name == "tiny + text.negative_text=no fog"
    assert load_negative_prompt(batch.profiles[clip.profile_digest], CONFIGS) == "no fog"


def test_places_and_expectations_by_dotted_key_are_the_rows_own() -> None:
    dotted = {"delivery": {"target": "rushes", "name": "a.mp4"}, "quality": {"expect": {"motion": "rest"}}}
    flat = {"delivery_target": "rushes", "delivery_name": "a.mp4", "expect_motion": "rest"}
    (one,), (other,) = batch_of({**KITE, **dotted}).clips, batch_of({**KITE, **flat}).clips
    assert (one.deliveries, one.expect, one.clip_id) == (other.deliveries, other.expect, other.clip_id)
    assert one.profile_digest == TINY.digest()


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"preview.step": 4}, r"unknown column 'preview.step' \(did you mean 'preview.steps'\?\)"),
        ({"preview": {"stps": 4}}, r"unknown column 'preview.stps' \(did you mean 'preview.steps'\?\)"),
        ({"steps": 4}, r"unknown column 'steps' \(did you mean 'preview.steps' or 'refiner.steps'\?\)"),
        ({"delivery.targt": "a"}, r"unknown column 'delivery.targt' \(did you mean 'delivery.target'\?\)"),
        ({"preview": 4}, r"column 'preview': no row sets that, its profile does \(rows set preview.steps"),
        ({"preview.width": 64}, "column 'preview.width': no row sets that, its profile does"),
        ({"text.negative_prompt": "/etc/passwd"}, "column 'text.negative_prompt': no row sets that"),
        ({"delivery": {"watermark": "mine"}}, "column 'delivery.watermark': no row sets that"),
        ({"architectures": {"preview": {"num_layers": 1}}}, "column 'architectures.preview.num_layers': no row sets"),
        ({"preview.steps": 4, "preview": {"steps": 4}}, "gives two values for 'preview.steps'"),
        ({"negative_prompt": "a", "text": {"negative_text": "b"}}, "gives two values for 'text.negative_text'"),
        ({"delivery_target": "a", "delivery.target": "b"}, "gives two values for 'delivery_target'"),
        ({"preview.steps": "1001"}, "preview.steps is '1001': input should be less than or equal to 1000"),
        ({"profile": "tiny-preview", "refiner.steps": 3}, "refiner.steps: profile tiny-preview has no refiner"),
        ({"seed": 1, "seeds": [2]}, "gives both a seed and seeds"),
        ({"seeds": 3}, "seeds is 3, not a list"),
        ({"variants": 0}, "variants is 0, must be from 1 to 1000"),
        ({"variants": "many"}, "variants 'many' is not a whole number"),
        ({"matrix": "perhaps"}, "matrix is 'perhaps', must be true or false"),
        ({"matrix": True, "prompt": "a {red} kite"}, "the prompt's brace at character 7 .* choice of one"),
    ],
)
def test_what_a_row_cannot_say_is_its_own_fault_with_its_line(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=f"line 2: {reason}"):
        batch_of(KITE, {**KITE, **row}).require_good()


def test_a_table_whose_header_no_row_may_have_is_refused_whole(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"line 1: the header has the column 'preview.width': no row sets that"):
        read(tmp_path, "a.csv", "prompt,preview.width\na kite,64\n")


def test_variants_and_seeds_are_clips_of_one_row() -> None:
    derived = derive_seed("a kite", None)
    batch = batch_of({**KITE, "variants": 3}, {"prompt": "a dune", "name": "dune", "seeds": [5, 6]})
    assert [(clip.names[0], clip.seed) for clip in batch.clips] == [
        ("kite", derived),
        ("kite-v2", variant_seed(derived, 2)),
        ("kite-v3", variant_seed(derived, 3)),
        ("dune-s5", 5),
        ("dune-s6", 6),
    ]
    assert batch_of(KITE).clips[0].clip_id == batch.clips[0].clip_id


def test_braces_are_text_unless_row_or_batch_asks_for_choices() -> None:
    row = {"prompt": "a {red|blue} kite", "name": "kite"}
    assert [clip.prompt for clip in batch_of(row).clips] == ["a {red|blue} kite"]
    chosen = batch_of({**row, "matrix": "true"}).clips
    assert [(clip.prompt, clip.names[0]) for clip in chosen] == [
        ("a red kite", "kite-red"),
        ("a blue kite", "kite-blue"),
    ]
    assert batch_of(row, spread=Spread(matrix=True)).clips == chosen
    assert len(batch_of({**row, "matrix": "false"}, spread=Spread(matrix=True)).clips) == 1
    assert chosen[0].clip_id == batch_of({"prompt": "a red kite"}).clips[0].clip_id


def test_a_batchs_seeds_are_for_rows_without_any() -> None:
    batch = batch_of(KITE, {**KITE, "seed": 9}, {**KITE, "seeds": [8]}, spread=Spread(seeds=(1, 2)))
    assert [clip.seed for clip in batch.clips] == [1, 2, 9, 8]


def test_no_two_clips_of_a_row_get_one_name_at_a_target() -> None:
    fixed = {**KITE, "seeds": [1, 2], "variants": 2, "delivery_name": "kite.mp4"}
    names = [clip.deliveries[0].name for clip in batch_of(fixed, {**KITE, "seed": 1}).clips]
    assert len(set(names)) == len(names) == 4


def test_rows_are_counted_as_what_they_stand_for_before_anything_is_made() -> None:
    with pytest.raises(InputError, match=rf"2 rows stand for more than {MAX_ROWS} clips, line 2 alone for more than"):
        batch_of(KITE, {"prompt": "{a|b}" * 5_000, "matrix": True})
    rows = [{"prompt": "a kite", "variants": 1_000, "seeds": list(range(100))}, KITE]
    with pytest.raises(InputError, match=f"line 1 alone for {MAX_ROWS}"):
        batch_of(*rows)


def test_a_row_is_refused_whole_and_once_with_the_line_of_the_file(tmp_path: Path) -> None:
    rows = [{"prompt": "a {red <Figure 2>|blue} kite", "name": "kite", "matrix": True, "seeds": [1, 2]}, "a dune"]
    batch = read(tmp_path, "a.jsonl", "\n\n".join(map(json.dumps, rows)))
    assert [clip.prompt for clip in batch.clips] == ["a dune"]
    assert [str(row).partition(" (")[0].startswith("line 1: kite-red <Figure 2>-s1: ") for row in batch.bad_rows] == [
        True
    ]


def test_equal_rows_are_told_by_their_lines() -> None:
    batch = batch_of(KITE, {"prompt": "a dune"}, {"prompt": " a kite "}, {"prompt": "a {kite|dune}", "matrix": True})
    assert [(row.where, row.of) for row in batch.equal] == [
        ("line 3", "line 1"),
        ("line 4", "line 1"),
        ("line 4", "line 2"),
    ]
    assert str(batch.equal[0]) == f"line 3 is the clip of line 1 again ({batch.clips[0].short_id})"


def test_a_batch_has_so_many_different_settings_and_no_more() -> None:
    rows = [{"prompt": "a kite", "preview.steps": steps} for steps in range(1, MAX_PROFILES + 2)]
    assert batch_of(*rows[:MAX_PROFILES]).bad_rows == ()
    assert "different settings, as many as a batch may (split the batch)" in reason_of(*rows)


def test_the_table_in_the_docs_has_every_column_of_a_row_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "rows.md").read_text(encoding="utf-8")
    table = page.partition("## A row's own columns")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z_]+)` \|", table, re.MULTILINE) == list(ROW_COLUMNS)


def test_profiles_of_one_digest_keep_their_own_targets() -> None:
    def placed(name: str | None) -> Profile:
        return TINY.model_copy(update={"name": name, "delivery": replace(TINY.delivery, target=name)})

    rows = [Row(1, {"prompt": "a kite", "profile": "films"}), Row(2, {"prompt": "a dune", "profile": "rushes"})]
    batch = make_batch(rows, placed, folder=Path(), placing=Placing(require=lambda name: name))  # type: ignore[arg-type]
    assert [clip.deliveries[0].target for clip in batch.clips] == ["films", "rushes"]
