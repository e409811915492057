"""Signed deliveries: no signing gives the same bytes twice, and yet every delivery can be begun and asked for again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from magi2.artifacts.manifest import ManifestDraft
from magi2.artifacts.recipe import sha256_file
from magi2.batches.plan import BatchPlan, save_plan
from magi2.batches.receipts import load_receipts
from magi2.config.settings import Settings
from magi2.delivery.check import check_delivered
from magi2.delivery.places import FolderPlace
from magi2.delivery.sidecar import read_sidecar
from magi2.errors import ConfigError
from magi2.report.build import build_report
from magi2.types import CLIP, CONTACT_SHEET, POSTER, StageName
from tests.delivery.authority import Signing, make_signing
from tests.delivery.samples import write_mp4
from tests.jobs.job_samples import BOOK
from tests.jobs.studio import A_CLIP, Studio, publish, states


@pytest.fixture(scope="module")
def signing(tmp_path_factory: pytest.TempPathFactory) -> Signing:
    return make_signing(tmp_path_factory.mktemp("signing"))


class SigningStudio(Studio):
    """A deployment that signs, with one rendered clip."""

    def __init__(self, folder: Path, signing: Signing) -> None:
        super().__init__(folder)
        self.unsigned = self.settings
        signs = Settings.from_environment(signing.environment)
        self.settings = replace(self.settings, c2pa_certificate=signs.c2pa_certificate, c2pa_key=signs.c2pa_key)
        publish(self.store, A_CLIP)
        recipe = BOOK.chain(A_CLIP, A_CLIP.prompt)[StageName.MUX]
        self.store.remove(StageName.MUX, recipe.key)
        with self.store.stage_folder(recipe.stage, recipe.key) as place:
            write_mp4(place / CLIP)
            for name in (POSTER, CONTACT_SHEET, "probe.json"):
                (place / name).write_text(name)
            files = {name: place / name for name in (CLIP, POSTER, CONTACT_SHEET, "probe.json")}
            self.store.publish(ManifestDraft(recipe), files)

    def planned_again(self, number: int) -> BatchPlan:
        """Another batch of the same clip."""
        plan = replace(self.planned([A_CLIP]), batch_id=f"{number:016x}")
        save_plan(plan, self.store)
        return plan

    @property
    def clip(self) -> Path:
        return self.folder / "night" / "0.mp4"


@pytest.fixture
def studio(tmp_path: Path, signing: Signing) -> SigningStudio:
    return SigningStudio(tmp_path, signing)


def test_delivered_copy_is_signed_and_the_stored_one_is_not(studio: SigningStudio, signing: Signing) -> None:
    plan = studio.planned([A_CLIP])
    assert states(studio.deliver(plan)) == ["made"]
    found = check_delivered(studio.clip, signing.authority)
    assert (found.signature_state, found.matches) == ("trusted", True)
    (receipt,) = load_receipts(studio.store, plan.batch_id, A_CLIP.clip_id)
    sidecar = read_sidecar(studio.clip.with_suffix(".json"))
    assert receipt.signed and sidecar.signed and receipt.sha256 == sidecar.delivered.sha256 == sha256_file(studio.clip)
    stored = studio.store.payload(StageName.MUX, receipt.key, CLIP).sha256
    assert receipt.stored_sha256 == sidecar.stored.sha256 == stored != receipt.sha256
    report = build_report(studio.store, plan.batch_id)
    assert (report.counts["clips_signed"], report.counts["clips_marked"]) == (1, 0)


def test_what_was_brought_before_is_not_signed_again(studio: SigningStudio) -> None:
    plan = studio.planned([A_CLIP])
    studio.deliver(plan)
    before = studio.files()
    assert states(studio.deliver(plan, attempt=2)) == ["reused"] and studio.files() == before
    for number in (1, 2, 3):
        other = studio.planned_again(number)
        assert states(studio.deliver(other)) == ["reused"] and studio.files() == before
        (receipt,) = load_receipts(studio.store, other.batch_id, A_CLIP.clip_id)
        assert receipt.signed and receipt.delivered_at and receipt.name == "night/0.mp4"


@pytest.mark.parametrize("last", [".jpg", ".mp4"])
def test_delivery_that_was_killed_after_any_file_goes_on(
    studio: SigningStudio, signing: Signing, monkeypatch: pytest.MonkeyPatch, last: str
) -> None:
    plan, put = studio.planned([A_CLIP]), FolderPlace.put

    def killed(place: FolderPlace, source: Path, name: str) -> bool:
        is_new = put(place, source, name)
        if name.endswith(last):
            raise KeyboardInterrupt
        return is_new

    with monkeypatch.context() as patch:
        patch.setattr(FolderPlace, "put", killed)
        with pytest.raises(KeyboardInterrupt):
            studio.deliver(plan)
    left = studio.clip.read_bytes() if studio.clip.exists() else None
    assert states(studio.deliver(plan, attempt=2)) == ["made"]
    assert {path.suffix for path in studio.clip.parent.iterdir()} == {".mp4", ".jpg", ".json"}
    assert len(list(studio.clip.parent.glob("*.mp4"))) == 1, "nothing was brought under another name"
    assert left in (None, studio.clip.read_bytes())
    found = check_delivered(studio.clip, signing.authority)
    assert found.matches and found.signature_state == "trusted"


def test_deployment_that_begins_to_sign_does_not_take_what_is_there_for_signed(
    studio: SigningStudio, signing: Signing
) -> None:
    plan, signs = studio.planned([A_CLIP]), studio.settings
    studio.settings = studio.unsigned
    studio.deliver(plan)
    assert check_delivered(studio.clip).signature_state == "none"
    studio.settings = signs
    assert states(studio.deliver(plan, attempt=2)) == ["made"]
    signed = studio.clip.with_name(f"0_{A_CLIP.short_id}.mp4")
    assert check_delivered(signed, signing.authority).signature_state == "trusted"


def test_nothing_is_delivered_where_it_cannot_be_signed(studio: SigningStudio, tmp_path: Path) -> None:
    unfit = make_signing(tmp_path / "unfit", usage=None)
    plan = studio.planned([A_CLIP])
    studio.settings = replace(studio.settings, c2pa_certificate=unfit.certificate, c2pa_key=unfit.key)
    (failed,) = studio.deliver(plan)
    assert failed.state == "failed" and "cannot be signed" in str(failed.error)
    studio.settings = replace(studio.settings, c2pa_key=tmp_path / "absent.key")
    with pytest.raises(ConfigError, match=r"absent\.key"):
        studio.deliver(plan, attempt=2)
    assert studio.files() == {}
