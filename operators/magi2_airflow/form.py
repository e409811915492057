"""The form that starts a batch; main fields first, the others in sections."""

from __future__ import annotations

from airflow.sdk import Param

from magi2.batches.failure_limit import USUAL_STREAK
from magi2.checkpoints.fit import usual_profile
from magi2.config.load import experimental_names, profile_names
from magi2.config.settings import Settings
from magi2.delivery.targets import Targets
from magi2.inputs.limits import MAX_INLINE_BYTES, MAX_NAME_CHARS, MAX_OVERRIDE_CHARS, MAX_OVERRIDES, MAX_ROWS
from magi2.inputs.text import NAME_PATTERN
from magi2.types import StageName

PROFILES = profile_names(Settings.from_environment().configs)
EXPERIMENTAL = experimental_names(Settings.from_environment().configs)


def default_profile() -> str:
    """The profile that the weights are made for, where DAG files are parsed beside them; else the published one."""
    return usual_profile(Settings.from_environment())


RENDER_PARAMS = {
    "batch": Param(
        None,
        type=["string", "null"],
        title="Batch file",
        description_md="Path, `file://` or `s3://` address of a `.jsonl`, `.csv`, `.tsv`, `.json` or `.parquet` file "
        "of prompts, in the inbox or another of the deployment's input folders",
    ),
    "rows": Param(
        None,
        type=["string", "array", "null"],
        format="multiline",
        maxLength=MAX_INLINE_BYTES,
        maxItems=MAX_ROWS,
        title="Rows",
        description_md='CSV with a header, or JSON a line, such as `{"prompt": "A quiet harbor."}`',
        section="Rows in place of a file",
    ),
    "name": Param(
        None,
        type=["string", "null"],
        maxLength=MAX_NAME_CHARS,
        title="Name",
        description="What the batch is called; empty: as its file",
        section="Rows in place of a file",
    ),
    "profile": Param(
        default_profile(),
        type="string",
        pattern=f"^{NAME_PATTERN}$",
        title="Profile",
        examples=PROFILES,
        description=f"For rows that name none. Experimental: {', '.join(EXPERIMENTAL) or 'none'}",
    ),
    "failure_limit": Param(
        0,
        type="integer",
        minimum=0,
        title="Failure limit",
        description="Clips that may fail before the run does; from 1 on a batch that passes it stops",
    ),
    "on_bad_rows": Param(
        "refuse",
        type="string",
        enum=["refuse", "skip"],
        title="Bad rows",
        values_display={"refuse": "Refuse the whole file", "skip": "Skip them and count them as failed"},
    ),
    "on_limit": Param(
        None,
        type=["string", "null"],
        enum=["stop", "continue", None],
        title="Passed limit",
        values_display={"stop": "Stop the batch", "continue": "Render the other clips and fail at the end"},
        description="Empty: a limit from 1 on stops",
        section="More",
    ),
    "failure_streak": Param(
        USUAL_STREAK,
        type="integer",
        minimum=0,
        title="Equal failures",
        description="So many clips in a row that fail in one stage with one error pause the batch; 0: never",
        section="More",
    ),
    "matrix": Param(
        False,
        type="boolean",
        title="Choices in prompts",
        description_md="Render `{dusk|dawn}` in a prompt as a clip for each, of rows that say nothing of `matrix`",
        section="More",
    ),
    "overrides": Param(
        [],
        type=["array", "null"],
        items={"type": "string", "maxLength": MAX_OVERRIDE_CHARS},
        maxItems=MAX_OVERRIDES,
        title="Overrides",
        description_md="Changes to every profile, one a line, such as `refiner.steps=8`",
        section="More",
    ),
    "force": Param(
        [],
        type=["array", "null"],
        examples=[stage.value for stage in StageName],
        title="Force",
        description="Stages to compute again and compare with what is stored",
        section="More",
    ),
    "priority": Param(
        0,
        type="integer",
        minimum=-1000,
        maximum=1000,
        title="Priority",
        description="Waiting shards of batches with a higher number start first",
        section="More",
    ),
    "budget": Param(
        None,
        type=["number", "null"],
        exclusiveMinimum=0,
        title="Budget",
        description="What the batch may cost, in the deployment's currency; once it is spent no further shard starts",
        section="More",
    ),
    "images": Param(
        None,
        type=["string", "null"],
        title="Image folder",
        description="Where relative paths in the file start, in the same input folders; empty: at the file's own",
        section="More",
    ),
    "delivery_target": Param(
        None,
        type=["string", "null"],
        examples=list(Targets.of(Settings.from_environment()).names),
        title="Target",
        description="Where finished clips are brought whose rows name no target; empty: where their profiles say",
        section="More",
    ),
    "delivery_name": Param(
        None,
        type=["string", "null"],
        title="Names",
        description_md="Template of their names there, such as `{batch}/{name}_{seed}_{profile}.mp4`",
        section="More",
    ),
    "rerun_of": Param(
        None,
        type=["string", "null"],
        title="Batch id",
        description="An earlier batch to run again instead of a file",
        section="Run again",
    ),
    "only": Param(
        [],
        type=["array", "null"],
        items={"type": "string"},
        title="Clips",
        description_md="Ids of its clips, one a line, or `failed`; empty: all",
        section="Run again",
    ),
}
