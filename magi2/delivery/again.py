"""A clip to be rendered again from its sidecar: the same settings, weights, texts and images, or a refusal.

A sidecar is somebody else's words. Its settings pass the profile's schema; where files lie, where clips go and which
code marks them is decided here, never there. Nothing is rendered unless all keys come out as the sidecar has them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from magi2.artifacts.recipe import Recipe
from magi2.batches.batch_file import Batch, make_batch
from magi2.batches.images import read_image
from magi2.batches.placing import Placing
from magi2.batches.rows import Row
from magi2.config.load import override_profile, require_named_files
from magi2.config.profile import Profile
from magi2.config.strict import validate
from magi2.delivery.record import NOT_FROM_FILES, marking_of
from magi2.delivery.sidecar import Sidecar
from magi2.deployment import Deployment
from magi2.errors import CorruptedArtifactError, InputError
from magi2.files import disk_errors
from magi2.inputs.files import InputRoots
from magi2.inputs.limits import MAX_NAME_CHARS, MAX_PICTURE_BYTES
from magi2.inputs.refusals import UnreadableError
from magi2.inputs.text import check_depth, is_name, quoted, shown
from magi2.media.delivery import PLACEMENT
from magi2.types import Clip, StageName

_FREE_TEXT = ("settings.delivery.label.text", "settings.text.negative_text")
_PATH_SIGNS = ("/", "\\", "\0", "..", "~")
_MAX_FILES = 10_000


@dataclass(frozen=True)
class Again:
    """A clip as its sidecar has it, and the deployment that makes it: with the sidecar's negative prompt, if that is
    another than here (`is_own_negative` is then false).
    """

    clip: Clip
    profile: Profile
    deployment: Deployment
    is_own_negative: bool


def again(
    sidecar: Sidecar,
    deployment: Deployment,
    *,
    name: str,
    placing: Placing,
    overrides: Sequence[str] = (),
    images: Path | None = None,
    scratch: Path,
) -> Again:
    """What renders the clip of a sidecar again, called `name` and brought where `placing` says.

    Images come from the store, or from the folder `images`.

    `overrides` are for what a sidecar must not name. `scratch` is an empty folder that outlives the render.
    Raises: InputError for settings that are refused, an image that is not there, other weights than the clip was made
    by, or a clip that would not be the same here, each naming the difference.
    """
    profile = _profile(sidecar, overrides)
    _check_weights(sidecar, deployment)
    figures = _images(sidecar, deployment, images, scratch)
    row = Row(1, {"name": name[:MAX_NAME_CHARS], **_row_values(sidecar, figures)})
    batch = make_batch(
        [row], lambda name: profile, folder=scratch, roots=InputRoots((scratch,)), placing=placing
    ).require_good()
    clip = _clip_of(sidecar, batch)
    book = deployment.recipe_book(profile)
    is_own = book.negative_prompt == sidecar.negative_prompt
    if not is_own:
        deployment = _with_negative_prompt(deployment, profile, sidecar.negative_prompt, scratch)
        book = deployment.recipe_book(profile)
    _check_keys(sidecar, book.chain(clip, sidecar.caption))
    return Again(clip, profile, deployment, is_own)


def _profile(sidecar: Sidecar, overrides: Sequence[str]) -> Profile:
    recorded = sidecar.profile
    if not is_name(recorded.name):
        raise InputError(f"the sidecar's profile {quoted(recorded.name)} is no name")
    check_settings(recorded.settings)
    profile = validate(Profile, {**recorded.settings, "name": recorded.name}, place="the sidecar's settings")
    profile = require_named_files(override_profile(profile, overrides) if overrides else profile)
    if (found := profile.digest()) != recorded.digest:
        watermark = sidecar.marking.get("watermark")
        hint = "name its watermark yourself: --set delivery.watermark=NAME" if watermark else None
        message = f"the sidecar's settings are those of profile {found[:12]}, it was made with {recorded.digest[:12]}"
        raise InputError(message, hint=hint)
    return profile


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raises InputError for what a sidecar must not decide."""
    try:
        check_depth(settings)
    except ValueError as error:
        raise InputError(f"the sidecar's settings: {error}") from None
    delivery = settings.get("delivery")
    for key in (*PLACEMENT, *NOT_FROM_FILES):
        if isinstance(delivery, Mapping) and key in delivery:
            hint = f"say it yourself, if you want it: --set delivery.{key}=..."
            raise InputError(f"the sidecar's settings have delivery.{key}, which nobody takes from a file", hint=hint)
    for place, text in _texts(settings, "settings"):
        if place not in _FREE_TEXT and any(sign in text for sign in _PATH_SIGNS):
            raise InputError(f"the sidecar's {shown(place)}: {quoted(text)} is a path or an address")


def _texts(value: object, place: str) -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, with where it stands."""
    if isinstance(value, str):
        yield place, value
    members = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, member in members:
        yield from _texts(member, f"{place}.{name}")


def _check_weights(sidecar: Sidecar, deployment: Deployment) -> None:
    for component, fingerprint in sidecar.weights.items():
        if component not in deployment.weights:
            raise InputError(f"the sidecar names weights of {quoted(component)}, which this magi2 does not know")
        if (found := deployment.weights[component]) != fingerprint:
            message = f"{component}: the weights here are {found[:12]}, the clip was made by {fingerprint[:12]}"
            raise InputError(message, hint="set MAGI2_CKPT_ROOT to the weights that made it")


def _row_values(sidecar: Sidecar, images: Mapping[int, Path]) -> dict[str, Any]:
    figures = {f"<Figure {number}>": str(path) for number, path in images.items()}
    return {"prompt": sidecar.prompt, "seed": sidecar.seed, "image": json.dumps(figures) if figures else None}


def _clip_of(sidecar: Sidecar, batch: Batch) -> Clip:
    (clip,) = batch.clips
    if clip.clip_id != sidecar.clip_id:
        raise InputError(f"the sidecar's clip is {sidecar.clip_id[:12]}, what it says makes clip {clip.short_id}")
    return replace(clip, caption=sidecar.caption)


def _images(sidecar: Sidecar, deployment: Deployment, folder: Path | None, scratch: Path) -> dict[int, Path]:
    """Copies of the images in `scratch`, by figure."""
    wanted = {image.sha256 for image in sidecar.images}
    found = _of_folder(folder, wanted) if folder and wanted else {}
    for digest in wanted - found.keys():
        try:
            found[digest] = read_image(deployment.store, digest)
        except CorruptedArtifactError as error:
            figures = ", ".join(f"<Figure {image.figure}>" for image in sidecar.images if image.sha256 == digest)
            looked = f" nor in {shown(folder)}" if folder else ""
            raise InputError(
                f"{figures}: {error}{looked}", hint="give the folder that has it: --images FOLDER"
            ) from None
    with disk_errors(scratch):
        for digest, content in found.items():
            (scratch / digest).write_bytes(content)
    return {image.figure: scratch / image.sha256 for image in sidecar.images}


def _of_folder(folder: Path, wanted: set[str]) -> dict[str, bytes]:
    """The files of a folder that have one of these digests, whatever their names."""
    roots, found = InputRoots((folder,)), {}
    with disk_errors(folder, InputError):
        files = sorted(path for path in folder.iterdir() if path.is_file())
    if len(files) > _MAX_FILES:
        raise InputError(f"--images {shown(folder)}: has {len(files)} files, at most {_MAX_FILES}")
    for path in files:
        try:
            content = roots.read(path, MAX_PICTURE_BYTES)
        except UnreadableError:
            continue  # not an image of ours: too large, or a link that leads away
        if (digest := sha256(content).hexdigest()) in wanted:
            found[digest] = content
    return found


def _with_negative_prompt(deployment: Deployment, profile: Profile, text: str | None, scratch: Path) -> Deployment:
    """The deployment with configs of its own, in which the profile's negative prompt is `text`."""
    if text is None or not profile.text.use_negative_prompt:
        raise InputError("the sidecar has a negative prompt where its settings use none, or the other way round")
    configs = scratch / "configs"
    with disk_errors(scratch):
        shutil.copytree(deployment.settings.configs, configs)
        (configs / profile.text.negative_prompt).unlink(missing_ok=True)
        (configs / profile.text.negative_prompt).write_text(text, encoding="utf-8")
    return Deployment(replace(deployment.settings, configs=configs), store_identity=deployment.store_identity)


def _check_keys(sidecar: Sidecar, chain: Mapping[StageName, Recipe]) -> None:
    """Raises InputError naming the first stage that would make something else here."""
    for stage, recipe in chain.items():
        recorded = sidecar.stages.get(stage)
        if recorded is None or recorded.key == recipe.key:
            continue
        reason, hint = f"magi2 {recorded.program} made it", None
        if stage is StageName.MUX:
            here, marked = marking_of(recipe.config), sidecar.marking
            differing = sorted(key for key in {*here, *marked} if here.get(key) != marked.get(key))
            reason = f"its marks differ in {', '.join(map(shown, differing)) or 'nothing'}; {reason}"
            hint = "set MAGI2_CONTENT_PRODUCER as it was" if "producer" in differing else None
        raise InputError(f"{stage.value}: this magi2 would make another clip than the sidecar's: {reason}", hint=hint)
