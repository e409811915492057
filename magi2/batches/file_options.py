"""What a batch file in the inbox asks for besides its rows: `night.options.yaml` beside `night.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from magi2.config.strict import validate
from magi2.errors import InputError
from magi2.inputs.text import NAME_PATTERN, load_yaml, shown

OPTIONS_SUFFIX = ".options.yaml"


class FileOptions(BaseModel):
    """The parameters of a run that a file may set, within the bounds of Airflow's form, which has defaults for all."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    profile: Annotated[str, Field(pattern=f"^{NAME_PATTERN}$")] | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    failure_limit: Annotated[int, Field(ge=0)] | None = None
    on_limit: Literal["stop", "continue"] | None = None
    failure_streak: Annotated[int, Field(ge=0)] | None = None
    on_bad_rows: Literal["refuse", "skip"] | None = None
    matrix: bool | None = None


def read_options(content: bytes, name: str) -> Mapping[str, Any]:
    """The options that a file of this name sets. Raises: InputError naming the key, the value and what is known."""
    try:
        data = load_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(f"{shown(name)}: is no UTF-8", hint="save it as UTF-8") from None
    except ValueError as error:
        raise InputError(f"{shown(name)}: unreadable: {error}") from None
    if data is not None and not isinstance(data, dict):
        raise InputError(f"{shown(name)}: options are lines of `key: value`, this is a {type(data).__name__}")
    return validate(FileOptions, data or {}, shown(name)).model_dump(exclude_none=True)
