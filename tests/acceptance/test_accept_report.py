"""What an acceptance says of what its steps found: verdicts, references, expectations, and nothing that is private."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from magi2.acceptance.expect import expectation
from magi2.acceptance.plan import STEPS, Difference, Figure, Findings, Options, Outcome, chosen
from magi2.acceptance.reference import references, slower_than_reference
from magi2.acceptance.report import REPORT_JSON, REPORT_TEXT, Report
from magi2.acceptance.scrub import Scrubber
from magi2.config.load import load_profile
from magi2.config.price import Price
from magi2.config.settings import Settings
from magi2.errors import InputError
from magi2.parallel.layout import ONE_RANK, ParallelLayout

OPTIONS = Options(("1080p",))
FULL = load_profile("1080p", Settings().configs)
MEASURED = (
    Outcome("text", "passed", 1.0, figures=(Figure("prompt", 200.0, "ms"),)),
    Outcome("preview", "passed", 1.0, figures=(Figure("896x512.whole_step", 8000.0, "ms", extrapolated=True),)),
    Outcome("refiner", "passed", 1.0, figures=(Figure("1920x1088.whole_step", 30000.0, "ms"),)),
    Outcome("decode", "passed", 1.0, figures=(Figure("pixels", 1920 * 1088 * 249), Figure("clip", 9000.0, "ms"))),
)


def step_on(card: str, *figures: Figure) -> Outcome:
    return slower_than_reference(Outcome("preview", "passed", 1.0, card=card, figures=figures))


def test_steps_are_chosen_by_name_in_their_own_order() -> None:
    assert [step.name for step in chosen(["preview", "tools"], [])] == ["tools", "preview"]
    assert [step.name for step in chosen([], ["rehearse"])] == [step.name for step in STEPS[:-1]]
    with pytest.raises(InputError, match=r"unknown step 'previw'.*preview"):
        chosen(["previw"], [])


def test_an_outcome_survives_its_file_and_other_options_are_another_acceptance() -> None:
    (outcome,) = (each for each in MEASURED if each.step == "preview")
    assert Outcome.from_json(json.loads(json.dumps(outcome.to_json()))) == outcome
    others = ({}, {"layers": 4}, {"layout": "sp2"}, {"random_weights": True}, {"weights": "fp8"})
    assert len({Options(("1080p",), **more).key for more in others}) == len(others)


def test_a_step_that_found_a_difference_has_not_passed() -> None:
    found = Findings()
    found.add(Figure("tokens", 3))
    assert found.outcome("text", "passed", 1.0).verdict == "passed"
    found.add(Difference("other bits"))
    assert found.outcome("text", "passed", 1.0).verdict == "differs"
    assert found.outcome("text", "failed", 1.0).verdict == "failed"


def test_a_figure_beyond_a_fifth_over_its_reference_is_slower_and_told_where_to_look() -> None:
    name, known = "896x512.sparse_layer", references()[0].figures["preview/896x512.sparse_layer"]
    near = step_on("NVIDIA H200", Figure(name, known.value * 1.19, "ms"))
    assert near.verdict == "passed" and not near.slower
    slow = step_on("NVIDIA H200", Figure(name, known.value * 1.3, "ms"))
    assert slow.verdict == "slower"
    assert name in slow.slower[0] and "1.30 times NVIDIA H200" in slow.slower[0] and "look at" in slow.slower[0]


def test_another_card_is_compared_by_its_distance_from_its_own_ceilings() -> None:
    name = "896x512.whole_step"
    known = references()[0].figures[f"preview/{name}"]
    slower_card = Figure(name, known.value * 5, "ms", floor=known.floor * 5)
    assert step_on("MTT S5000", slower_card).verdict == "passed"
    wasteful = Figure(name, known.value * 5, "ms", floor=known.floor * 3)
    assert step_on("MTT S5000", wasteful).verdict == "slower"
    assert step_on("MTT S5000", Figure(name, known.value * 5, "ms")).verdict == "passed"


def test_what_differs_stays_so_where_it_is_slow_as_well() -> None:
    known = references()[0].figures["preview/896x512.sparse_layer"]
    figure = Figure("896x512.sparse_layer", known.value * 2, "ms")
    both = slower_than_reference(Outcome("preview", "differs", 1.0, card="NVIDIA H200", figures=(figure,)))
    assert both.verdict == "differs" and both.slower


def test_every_shipped_reference_is_of_a_step() -> None:
    names = {step.name for step in STEPS}
    assert references()
    for table in references():
        assert {name.partition("/")[0] for name in table.figures} <= names
        assert all(figure.unit == "ms" and figure.value > 0 for figure in table.figures.values())


def test_a_clip_takes_its_steps_and_costs_its_accelerators() -> None:
    found = expectation(FULL, MEASURED, ParallelLayout(cp=8, ep=8), Price(3.6, "USD"))
    # 0.2 s of text, 100 steps of 8 s, 5 of 30 s, 9 s of decoding.
    assert found.seconds == pytest.approx(959.2)
    assert found.clips_a_night == 36000 // 959.2
    assert found.cost == f"{(950 * 8 + 9.2) / 1000:.2f} USD"
    assert found.extrapolated == ("preview",) and found.parts["mux"] is None


def test_a_schedule_counts_its_evaluations_and_a_smaller_picture_its_pixels() -> None:
    draft = load_profile("540p", Settings().configs, ["preview.quality=draft"])
    found = expectation(draft, MEASURED, ONE_RANK, None)
    evaluations = draft.preview.evaluated.evaluations(draft.preview.steps)
    assert found.parts["preview"].seconds == pytest.approx(8.0 * evaluations / 2)
    assert found.parts["decode"].seconds == pytest.approx(9.0 * 896 * 512 * 125 / (1920 * 1088 * 249))
    assert set(found.extrapolated) == {"preview", "decode"} and found.cost is None


def test_what_was_not_run_is_missing_and_nothing_follows() -> None:
    found = expectation(FULL, [each for each in MEASURED if each.step != "refiner"], ONE_RANK, None)
    assert found.missing == ("refine",)
    assert found.seconds is None and found.clips_a_night is None and found.cost is None


def test_a_report_says_of_a_step_that_was_not_run_why_and_never_that_it_passed(tmp_path: Path) -> None:
    absent = Outcome("kernels", "not run", 0.0, reason="there is no accelerator")
    report = Report(OPTIONS, str(ONE_RANK), [absent], [])
    report.write(tmp_path, Scrubber(Settings()))
    (step,) = json.loads((tmp_path / REPORT_JSON).read_text())["steps"]
    assert step["verdict"] == "not run" and step["reason"] == "there is no accelerator"
    text = (tmp_path / REPORT_TEXT).read_text()
    assert "| not run |" in text and "passed" not in text


@pytest.mark.parametrize("verdict", ["differs", "failed"])
def test_a_report_with_a_fault_is_no_acceptance_and_says_what_to_do(verdict: str, tmp_path: Path) -> None:
    bad = Outcome("store", verdict, 0.0, differences=("other | bytes",))
    report = Report(OPTIONS, str(ONE_RANK), [*MEASURED, bad], [])
    assert not report.is_accepted and Report(OPTIONS, str(ONE_RANK), MEASURED, []).is_accepted
    report.write(tmp_path, Scrubber(Settings()))
    assert "other \\| bytes. To do: magi2 doctor" in (tmp_path / REPORT_TEXT).read_text()


PRIVATE = Settings(
    ckpt_root=Path("/mnt/weights"),
    store="s3://minio.studio.example:9000/clips?secret=1",
    catalog="postgresql://magi2:hunter22@db.studio.example/magi2",
    pe_api_key="sk-very-secret",
    airflow_password="correct horse",
)
LEAKS = (
    f"no file at /mnt/weights/preview/model.safetensors on {socket.gethostname()}; "
    "s3://minio.studio.example:9000/clips?secret=1 is away, postgresql://magi2:hunter22@db.studio.example/magi2 too; "
    "10.1.2.3:9000 refused ~/notes and ../up/here; sk-very-secret, correct horse"
)


def test_a_report_names_no_path_address_host_or_secret() -> None:
    text = Scrubber(PRIVATE).text(LEAKS)
    for private in ("weights", "studio", "hunter22", "secret", "horse", "10.1.2.3", "notes", "/"):
        assert private not in text, text
    assert f" {socket.gethostname()};" not in text and text.startswith("no file at <p")


def test_with_paths_it_names_all_of_these_but_secrets() -> None:
    text = Scrubber(PRIVATE, with_paths=True).text(LEAKS)
    for kept in ("/mnt/weights/preview", "minio.studio.example", "10.1.2.3:9000", "~/notes"):
        assert kept in text
    for secret in ("hunter22", "sk-very-secret", "correct horse"):
        assert secret not in text


def test_words_with_a_slash_stay() -> None:
    said = "4.28 TB/s, 788 TFLOP/s; look at docs/nodes.md: latents 32x16/28, torch 2.11.0+cu130, cuDNN 91900"
    assert Scrubber(PRIVATE).text(said) == said
