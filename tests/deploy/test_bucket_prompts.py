"""Prompts from a bucket of a real server, whose reader may read them and nothing else."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from tests.cli.cli_said import called_here
from tests.real_servers import READER, S3Server, seaweedfs

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.deployment
SMALL = ("preview.steps=2", "preview.width=64", "preview.height=32", "delivery.size=[256, 128]")


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        picture = io.BytesIO()
        Image.new("RGB", (128, 64), "teal").save(picture, "png")
        table = b"prompt_file,image,seed\ntexts/ball.txt,s3://clips/prompts/teal.png,1\n"
        objects = {
            "prompts/night.csv": table,
            "prompts/texts/ball.txt": b"a red ball <Figure 1> moves to the right",
            "prompts/teal.png": picture.getvalue(),
            "prompts-of-others/night.csv": table,
        }
        for name, content in objects.items():
            server.client().put_object(server.bucket, name, io.BytesIO(content), len(content))
        yield server


def test_a_table_its_text_and_its_picture_are_read_with_the_readers_own_keys(
    bucket: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    magi2 = called_here(monkeypatch, capsys)
    server = f"endpoint={bucket.endpoint}&region=us-east-1"
    environment = {
        "MAGI2_CKPT_ROOT": str(EXAMPLES / "demo_checkpoint"),
        "MAGI2_STORE": f"s3://clips/store?{server}",
        "MAGI2_CATALOG": f"sqlite:///{tmp_path / 'catalog.db'}",
        "MAGI2_DEVICE": "cpu",
        "AWS_ACCESS_KEY_ID": bucket.access_key,
        "AWS_SECRET_ACCESS_KEY": bucket.secret_key,
        "MAGI2_INPUT_ROOTS": f"s3://clips/prompts/?{server}&secret=reader",
        "MAGI2_DELIVERY_SECRETS": json.dumps({"reader": READER}),
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    changes = [part for override in SMALL for part in ("--set", override)]
    asked = ("--profile", "demo", *changes, "--out", "out", "--json")

    said = magi2("render", "--prompts", "s3://clips/prompts/night.csv", *asked)
    assert said.code == 0, said.err
    (clip,) = json.loads(said.out)["clips"]
    assert Path(clip["files"]["clip.mp4"]).is_file()

    for address in ("s3://clips/prompts-of-others/night.csv", "s3://clips/prompts/../prompts-of-others/night.csv"):
        said = magi2("render", "--prompts", address, *asked)
        assert said.code == 2 and address in said.err

    monkeypatch.setenv("MAGI2_DELIVERY_SECRETS", json.dumps({"reader": {**READER, "secret_key": "hunter2"}}))
    said = magi2("render", "--prompts", "s3://clips/prompts/night.csv", *asked)
    assert said.code == 2 and "MAGI2_INPUT_ROOTS" in said.err
    assert "hunter2" not in said.err and bucket.endpoint not in said.err
