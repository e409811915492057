"""Clips in pages and one by one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient

from magi2.catalog.shards import ShardPosition
from magi2.types import StageName
from tests.operators.renders.renders_site import BATCH, HOSTILE, LONG, OTHER, Site, client

CLIPS = f"/api/batches/{BATCH}/clips"


def names(viewer: TestClient, **query: Any) -> list[str]:
    answer = viewer.get(CLIPS, params=query)
    assert answer.status_code == 200, answer.text
    return [name for clip in answer.json()["clips"] for name in clip["names"]]


def test_pages_together_have_every_clip_once(site: Site, viewer: TestClient) -> None:
    found = [name for offset in range(0, 9, 3) for name in names(viewer, sort="name", offset=offset, limit=3)]
    assert sorted(found) == sorted([HOSTILE, *(name for name in site.clips if name not in ("hostile", "fox by hand"))])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"state": "failed"}, {"lost", "nan"}),
        ({"state": "failed", "profile": "540p"}, {"nan"}),
        ({"profile": "540p"}, {"fox again", "nan"}),
        ({"tag": HOSTILE}, {"fox"}),
        ({"text": "RED FOX"}, {"fox", "fox again"}),
        ({"text": "<script>"}, {HOSTILE}),
        ({"stage": "preview", "reason": HOSTILE}, {"nan"}),
        ({"text": "' OR 1=1 --"}, set()),
        ({"shard": 7}, set()),
    ],
)
def test_filters_keep_what_meets_them(viewer: TestClient, query: dict[str, Any], expected: set[str]) -> None:
    assert set(names(viewer, **query)) == expected
    assert viewer.get(CLIPS, params=query).json()["total"] == len(expected)


def test_clips_are_sorted_both_ways(viewer: TestClient) -> None:
    assert names(viewer, sort="name", descending=False) == names(viewer, sort="name", descending=True)[::-1]
    assert names(viewer, sort="state", descending=False)[:3] in (["lost", "nan", "long"], ["nan", "lost", "long"])
    assert names(viewer, sort="seconds", state="failed") == ["lost", "nan"]
    assert names(viewer, sort="cost", state="failed", descending=False) == ["nan", "lost"]


@pytest.mark.parametrize("query", ["sort=prompt", "limit=201", "limit=0", "offset=-1", "state=lost", "stage=negative"])
def test_what_makes_no_sense_is_refused(viewer: TestClient, query: str) -> None:
    assert viewer.get(f"{CLIPS}?{query}").status_code == 422


def test_a_list_does_not_touch_the_store(site: Site, viewer: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("find", "fetch", "link", "get_document"):
        monkeypatch.setattr(type(site.deployment.store), name, lambda *_, **__: pytest.fail("the store was asked"))
    for path in ("/api/batches", f"/api/batches/{BATCH}", CLIPS, f"/api/batches/{BATCH}/failures"):
        assert viewer.get(path).status_code == 200


def test_a_card_cuts_its_prompt_and_names_its_files(site: Site, viewer: TestClient) -> None:
    clips = {clip["names"][0]: clip for clip in viewer.get(CLIPS).json()["clips"]}
    assert len(clips["long"]["prompt"]) == 301 and len(LONG) == 10_000
    assert clips["long"]["media"] is None
    assert clips["fox"]["media"] == {
        "clip": f"/media/{site.key('fox')}/clip.mp4",
        "poster": f"/media/{site.key('fox')}/poster.jpg",
        "thumbnail": f"/media/{site.key('fox')}/thumbnail.webp",
        "contact_sheet": f"/media/{site.key('fox')}/contact_sheet.jpg",
        "download": f"/media/{site.key('fox')}/clip.mp4?download=1",
    }
    assert (clips["fox"]["seconds"], clips["fox"]["cost"]) == (63.0, pytest.approx(5.04))
    assert clips["cat"]["flags"] == ["enhancement_fallback"]


def test_a_clip_is_told_whole(site: Site, viewer: TestClient) -> None:
    clip = viewer.get(site.path("cat")).json()
    assert clip["prompt"] == "a cat <Figure 1>"
    assert clip["caption"] == f"a caption of cat {HOSTILE}"
    assert clip["figures"] == [{"number": 1, "image": f"/images/{BATCH}/{site.id('cat')}/1"}]
    assert (clip["seed"], clip["profile"], clip["settings"]["name"]) == (8, "1080p", "1080p")
    assert clip["tier"] == "lossless, 100% of the evaluations"
    assert (clip["is_experimental"], viewer.get(site.path("nan")).json()["is_experimental"]) == (False, True)
    assert clip["recipe"]["config"] == {"label": "cat"}
    assert clip["store_problem"] is None
    steps = {step["stage"]: step for step in clip["timeline"]}
    assert [*steps] == ["enhance", "encode", "preview", "refine", "decode", "mux"]
    assert (steps["preview"]["state"], steps["preview"]["host"]) == ("made", "node1")
    assert (steps["preview"]["seconds"], steps["preview"]["peak_memory_bytes"]) == (60.0, 1 << 30)
    assert steps["refine"]["state"] == "waiting" and steps["refine"]["attempt"] == 0
    run = "/dags/magi2_render_batch/runs/manual__2031-02-03T04%3A05%3A06%2B00%3A00"
    assert clip["run_path"] == run
    assert steps["mux"]["task_path"] == f"{run}/tasks/shard.mux/mapped/0"
    assert steps["mux"]["log_path"] == f"{run}/tasks/shard.mux/mapped/0?try_number=1"


def test_every_attempt_is_told(site: Site, viewer: TestClient) -> None:
    clip = viewer.get(site.path("lost")).json()
    attempts = [step for step in clip["timeline"] if step["stage"] == "preview"]
    assert [(step["attempt"], step["is_last"], step["state"]) for step in attempts] == [
        (1, False, "failed"),
        (2, True, "failed"),
    ]
    assert (clip["failed_stage"], clip["reason"]) == ("preview", "a rank was lost")
    assert clip["log_path"].endswith("try_number=2") or clip["log_path"].endswith("try_number=1")


def test_a_clip_that_was_finished_before_reuses_every_stage(site: Site, viewer: TestClient) -> None:
    clip = viewer.get(site.path("found")).json()
    assert {step["state"] for step in clip["timeline"]} == {"reused"}
    assert (clip["state"], clip["task_path"], clip["recipe"]["config"]) == ("done", None, {"label": "found"})


def test_a_clip_can_be_compared(site: Site, viewer: TestClient) -> None:
    others = viewer.get(f"{site.path('fox')}/others").json()
    assert [(clip["names"], clip["batch_id"]) for clip in others["clips"]] == [
        (["fox again"], BATCH),
        (["fox by hand"], OTHER),
    ]
    assert viewer.get(f"{site.path('cat')}/others").json()["total"] == 0


def test_manifests_are_served_as_they_are(site: Site, viewer: TestClient) -> None:
    muxed = viewer.get(f"{site.path('fox')}/manifests/mux")
    assert muxed.json()["key"] == site.key("fox") and muxed.content == site.delivered["fox"].to_bytes()
    assert viewer.get(f"{site.path('fox')}/manifests/enhance").json()["recipe"]["stage"] == "enhance"
    assert viewer.get(f"{site.path('fox')}/manifests/decode").status_code == 404
    assert viewer.get(f"{site.path('lost')}/manifests/mux").status_code == 404
    assert viewer.get(f"{site.path('fox')}/manifests/..%2Fmux").status_code in (404, 422)


def test_a_clip_of_another_batch_is_not_there(site: Site, viewer: TestClient) -> None:
    fox = site.id("fox")
    assert viewer.get(f"/api/batches/{OTHER}/clips/{fox}").status_code == 404
    assert viewer.get(f"/api/batches/{BATCH}/clips/{fox[:12]}").status_code == 422


def test_a_damaged_store_leaves_the_rest_of_a_clip(own_site: Site) -> None:
    payload = own_site.delivered["fox"].payloads["clip.mp4"].file
    (path,) = own_site.deployment.store.root.rglob(payload)  # type: ignore[attr-defined]
    path.unlink()
    clip = client().get(own_site.path("fox")).json()
    assert (clip["recipe"], clip["store_problem"]) == (None, "no recipe: corrupted_artifact")
    assert clip["caption"].startswith("a caption of fox")


def test_a_clip_at_work_tells_stage_step_and_where_its_picture_is(own_site: Site) -> None:
    viewer, clip_id = client("viewer"), own_site.id("long")
    work = {"stage": "encode", "step": None, "steps": None, "picture": None}
    assert viewer.get(own_site.path("long")).json()["work"] == work
    own_site.catalog.runs.start(BATCH, StageName.PREVIEW, [clip_id], attempt=1, shard=0, host="node1")
    position = {"shard": 0, "stage": StageName.PREVIEW, "attempt": 1, "clip_id": clip_id, "steps": 20}
    for step, picture in ((0, None), (10, f"/pictures/{BATCH}/{clip_id}?step=10")):
        now = datetime.now(UTC)
        own_site.catalog.shards.at_step(BATCH, ShardPosition(**position, step=step, steps_per_second=None, at=now))  # type: ignore[arg-type]
        cards = {card["clip_id"]: card["work"] for card in viewer.get(CLIPS).json()["clips"]}
        assert cards[clip_id] == {"stage": "preview", "step": step, "steps": 20, "picture": picture}
    assert "preview step 10 of 20" in viewer.get(f"/batches/{BATCH}").text
    assert {card["work"] for name, card in _cards(viewer).items() if name != "long"} == {None}


def test_neighbours_follow_the_filters_of_the_list(site: Site, viewer: TestClient) -> None:
    query = {"state": "failed", "sort": "seconds"}
    first, last = (f"{CLIPS}/{site.id(name)}/neighbours" for name in ("lost", "nan"))
    expected = {"previous": None, "next": site.id("nan"), "place": 1, "total": 2}
    assert viewer.get(first, params=query).json() == expected
    assert viewer.get(last, params=query).json()["previous"] == site.id("lost")
    gone = {"previous": None, "next": None, "place": None, "total": 2}
    assert viewer.get(f"{CLIPS}/{site.id('fox')}/neighbours", params=query).json() == gone
    assert viewer.get(f"{CLIPS}/{'0' * 64}/neighbours").status_code == 404


def _cards(viewer: TestClient) -> dict[str, Any]:
    return {card["names"][0]: card for card in viewer.get(CLIPS).json()["clips"]}
