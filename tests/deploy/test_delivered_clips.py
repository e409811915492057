"""The demo's six clips from their prompts to somebody's bucket: under their names, marked, signed, checked, made again.

They have few steps and small pictures here; as their profiles say they are made under `make test-demo-world`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from magi2.artifacts.address import open_store
from magi2.batches.documents import load_report
from tests.cli.cli_said import Magi2, called_here
from tests.delivery.authority import SIGNER, Signing, make_signing
from tests.delivery.samples import flip_bit
from tests.real_servers import S3Server, seaweedfs

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = {
    "red_ball_1_demo",
    "spinning_triangle_2_demo",
    "green_square_in_Chinese_3_demo",
    "between_two_walls_4_demo",
    "triangle_of_a_picture_5_demo",
    "red_ball_refined_1_demo-refined",
}
ENDINGS = (".mp4", ".json", ".jpg", ".contact_sheet.jpg")
PRODUCER = "某某影业 studio"
SMALL = (
    *("preview.steps=2", "preview.width=64", "preview.height=32"),
    *("refiner.width=128", "refiner.height=64", "delivery.size=[256, 128]"),
)


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        yield server


@pytest.fixture
def signing(tmp_path: Path) -> Signing:
    return make_signing(tmp_path / "signing")


@pytest.fixture
def magi2(
    bucket: S3Server,
    signing: Signing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Magi2:
    """Run `magi2 ARGUMENTS` in a deployment that signs and has the bucket as its target."""
    run = called_here(monkeypatch, capsys)
    url = f"s3://{bucket.bucket}/night/?endpoint={bucket.endpoint}"
    environment = {
        "MAGI2_CKPT_ROOT": str(EXAMPLES / "demo_checkpoint"),
        "MAGI2_STORE": str(tmp_path / "store"),
        "MAGI2_DEVICE": "cpu",
        "MAGI2_CONTENT_PRODUCER": PRODUCER,
        "MAGI2_DELIVERY_TARGETS": json.dumps({"studio": {"url": url, "secret": "studio"}}),
        "MAGI2_DELIVERY_SECRETS": json.dumps(
            {"studio": {"access_key": bucket.access_key, "secret_key": bucket.secret_key}}
        ),
        **signing.environment,
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return run


def fetch_all(bucket: S3Server, folder: Path) -> set[str]:
    """Bring every object to a folder; their names below the target's prefix."""
    client, names = bucket.client(), set()
    for found in client.list_objects(bucket.bucket, prefix="night/", recursive=True):
        name = str(found.object_name).removeprefix("night/")
        client.fget_object(bucket.bucket, str(found.object_name), str(folder / name))
        names.add(name)
    return names


@pytest.mark.parametrize(
    "overrides",
    [
        pytest.param(SMALL, marks=pytest.mark.deployment, id="small"),
        pytest.param((), marks=pytest.mark.demo_world, id="as they are"),
    ],
)
def test_six_clips_are_delivered_marked_signed_checked_and_one_is_made_again(
    magi2: Magi2,
    bucket: S3Server,
    signing: Signing,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    overrides: tuple[str, ...],
) -> None:
    changes = [part for override in ("delivery.target=studio", *overrides) for part in ("--set", override)]
    said = magi2("render", "--prompts", EXAMPLES / "shapes.jsonl", "--profile", "demo", *changes, "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert [clip["stages"]["deliver"] for clip in told["clips"]] == ["made"] * 6

    assert fetch_all(bucket, tmp_path) == {f"shapes/{name}{ending}" for name in NAMES for ending in ENDINGS}
    clips = sorted((tmp_path / "shapes").glob("*.mp4"))
    said = magi2("marks", *clips, "--json")
    assert said.code == 0, said.out
    for file in json.loads(said.out)["files"]:
        kept = (file["marked"], file["sidecar"], file["signature"], file["signed_by"], file["problems"])
        assert kept == (True, "matches", "trusted", SIGNER, []), file["file"]
        assert file["aigc"]["ContentProducer"] == PRODUCER
    report = load_report(open_store(str(tmp_path / "store")), told["batch"])
    assert report is not None
    counted = [report.counts[f"clips_{name}"] for name in ("delivered", "marked", "signed")]
    assert counted == [6, 6, 6]

    tampered = clips[0]
    flip_bit(tampered, tampered.read_bytes().index(b"mdat") + 1000)
    said = magi2("marks", *clips, "--json")
    assert said.code == 1
    found = {Path(file["file"]): (file["signature"], file["sidecar"]) for file in json.loads(said.out)["files"]}
    assert found.pop(tampered) == ("invalid", "differs") and set(found.values()) == {("trusted", "matches")}

    sidecar = tmp_path / "shapes" / "triangle_of_a_picture_5_demo.json"
    monkeypatch.setenv("MAGI2_STORE", str(tmp_path / "another store"))
    said = magi2("render", "--from-sidecar", sidecar, "--images", EXAMPLES, "--out", tmp_path / "again", "--json")
    assert said.code == 0, said.err
    (clip,) = json.loads(said.out)["clips"]
    assert clip["same_bytes"] and set(clip["stages"].values()) == {"made"}
    again = json.loads(Path(clip["files"]["sidecar.json"]).read_text())
    assert again["stored"] == json.loads(sidecar.read_text())["stored"]
    assert magi2("marks", clip["files"]["clip.mp4"]).code == 0
