"""What `magi2 marks` finds in a delivered file: each promise that is not kept, and nothing in one that keeps all."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from magi2.config.settings import Settings
from magi2.delivery import credentials
from magi2.delivery.check import check_delivered
from magi2.delivery.credentials import Signer
from magi2.errors import InputError
from magi2.media.marks.read import read_marks
from magi2.media.marks.xmp import xmp_box
from tests.delivery.authority import Signing, make_signing
from tests.delivery.samples import flip_bit, write_marked, write_mp4, write_sidecar


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Signing:
    return make_signing(tmp_path_factory.mktemp("signing"))


@pytest.fixture(scope="module")
def delivered(tmp_path_factory: pytest.TempPathFactory, signing: Signing) -> Path:
    """A folder with a signed clip and its sidecar. Read only."""
    folder = tmp_path_factory.mktemp("delivered")
    signer = Signer.of(Settings.from_environment(signing.environment))
    assert signer is not None
    signer.sign(write_marked(folder / "plain.mp4", "studio"), folder / "clip.mp4")
    write_sidecar(folder / "clip.mp4", signed=True, marking={"producer": "studio", "provenance": "ids"})
    (folder / "plain.mp4").unlink()
    return folder


@pytest.fixture
def clip(delivered: Path, tmp_path: Path) -> Path:
    return shutil.copytree(delivered, tmp_path / "copy") / "clip.mp4"


def test_clip_that_keeps_its_promises_has_no_problems(clip: Path, signing: Signing) -> None:
    found = check_delivered(clip, signing.authority)
    assert (found.problems, found.notes, found.signature_state, found.matches) == ((), (), "trusted", True)
    unknown = check_delivered(clip)
    assert unknown.signature_state == "valid" and not unknown.problems
    assert "MAGI2_C2PA_TRUST" in unknown.notes[0]


def test_signing_leaves_every_mark_once(clip: Path) -> None:
    marks = read_marks(clip)
    assert (marks.problems, len(marks.aigc), len(marks.xmp)) == ((), 1, 1)


def test_unsigned_clip_without_a_producer_is_good_and_that_is_noted(tmp_path: Path) -> None:
    write_sidecar(write_marked(tmp_path / "clip.mp4"))
    found = check_delivered(tmp_path / "clip.mp4")
    assert (found.problems, found.signature_state) == ((), "none")
    assert "AIGC names no producer" in found.notes[0]


def rewrite(**changes: object) -> Callable[[Path], object]:
    def change(clip: Path) -> None:
        content = json.loads(clip.with_suffix(".json").read_text())
        clip.with_suffix(".json").write_text(json.dumps(content | changes))

    return change


def replace(clip: Path, write: Callable[[Path], Path]) -> None:
    clip.unlink()
    write(clip)


DIFFERENT: dict[str, Callable[[Path], object]] = {
    "no sidecar": lambda clip: clip.with_suffix(".json").unlink(),
    "not JSON": lambda clip: clip.with_suffix(".json").write_text("{"),
    "is not what was delivered": lambda clip: clip.open("ab").write(b"\0\0\0\x08free"),
    "signature is invalid: assertion.bmffHash.mismatch": lambda clip: flip_bit(
        clip, clip.read_bytes().index(b"mdat") + 9
    ),
    "was delivered signed and has no signature": lambda clip: replace(clip, lambda path: write_marked(path, "studio")),
    "no AIGC entries": lambda clip: replace(clip, write_mp4),
    "XMP names .*, http": lambda clip: clip.open("ab").write(xmp_box()),
    "AIGC names 'studio' as producer, the sidecar 'another'": rewrite(marking={"producer": "another"}),
    "tag magi2_seed is '7', the sidecar says 8": rewrite(seed=8),
    "tag magi2_profile is": rewrite(profile={"name": "tiny", "digest": "9" * 64, "settings": {}}),
    "neither MP4 nor Matroska": lambda clip: clip.write_bytes(b"no clip"),
}


@pytest.mark.parametrize("problem", DIFFERENT)
def test_promise_that_is_not_kept_is_named(clip: Path, signing: Signing, problem: str) -> None:
    DIFFERENT[problem](clip)
    found = check_delivered(clip, signing.authority)
    assert any(re.search(problem, line) for line in found.problems), found.problems


def test_every_flipped_byte_is_found_by_signature_or_digest(clip: Path, signing: Signing) -> None:
    content = clip.read_bytes()
    for place in range(0, len(content), len(content) // 40):
        clip.write_bytes(content)
        flip_bit(clip, place)
        assert check_delivered(clip, signing.authority).problems, place


def test_flipped_byte_of_a_mark_breaks_the_signature_itself(clip: Path, signing: Signing) -> None:
    content = clip.read_bytes()
    for word in (b"ContentProducer", b"DigitalSourceType", b"magi2_seed"):
        clip.write_bytes(content)
        flip_bit(clip, content.rindex(word))
        assert check_delivered(clip, signing.authority).signature_state == "invalid", word


def test_without_the_library_a_promised_signature_is_a_problem_and_no_other(
    clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "find_spec", lambda name: None)
    found = check_delivered(clip)
    assert found.signature_state == "unchecked" and "was not checked" in found.problems[0]
    write_sidecar(write_marked(tmp_path / "plain.mp4"))
    assert check_delivered(tmp_path / "plain.mp4").problems == ()


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        check_delivered(tmp_path / "absent.mp4")
