"""MAGI2_INPUT_ROOTS: folders and prefixes of buckets between colons."""

from __future__ import annotations

from pathlib import Path

import pytest

from magi2.batches.input_roots import deployment_roots, input_prefixes
from magi2.config.input_roots import InputPrefix
from magi2.config.settings import Settings
from magi2.errors import ConfigError


def parsed(text: str) -> tuple[Path | InputPrefix, ...]:
    return Settings.from_environment({"MAGI2_INPUT_ROOTS": text}).input_roots


@pytest.mark.parametrize(
    ("entry", "wanted"),
    [
        ("s3://studio/prompts/", InputPrefix("s3://studio/prompts/")),
        ("s3://studio/", InputPrefix("s3://studio/")),
        (
            "s3://studio/p/?endpoint=http://10.0.0.7:8333&secret=client",
            InputPrefix("s3://studio/p/?endpoint=http%3A%2F%2F10.0.0.7%3A8333", secret="client"),
        ),
        (
            "s3://studio/p/?connection=my_s3&endpoint=https://[::1]:9000&region=eu",
            InputPrefix("s3://studio/p/?endpoint=https%3A%2F%2F%5B%3A%3A1%5D%3A9000&region=eu", connection="my_s3"),
        ),
    ],
)
@pytest.mark.parametrize("form", ["{}", "/a:{}", "{}:/a", "/a:{}:/b:", "{0}:{0}"])
def test_prefixes_stand_between_folders(entry: str, wanted: InputPrefix, form: str) -> None:
    found = parsed(form.format(entry))
    assert [root for root in found if isinstance(root, InputPrefix)] == [wanted] * form.count("{")
    assert [str(root) for root in found if isinstance(root, Path)] == [f for f in ("/a", "/b") if f in form]


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        *((each, "does not end at a /") for each in ("s3://studio/prompts", "s3://studio", "s3://studio:9000/p/")),
        *((each, "names no bucket alone") for each in ("s3://", "s3:///p/", "s3://hunter2@studio/p/")),
        *((each, "no known kind") for each in ("gs://studio/p/", "http://host/p/", "file:///srv/", "S3://studio/p/")),
        ("s3://studio/p//q/", "an empty part"),
        ("s3://studio/p/../q/", r"has the part '\.\.'"),
        ("s3://studio/%70/", "has the escape"),
        ("s3://studio/p/?endpoint=http://h&access_key=hunter2", "unknown option 'access_key'"),
        ("s3://studio/p/?secret=a&connection=b", "both a secret and a connection"),
    ],
)
def test_what_is_no_prefix_is_refused_when_the_settings_are_read(entry: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        parsed(f"/a:{entry}")
    assert "MAGI2_INPUT_ROOTS" in str(caught.value) and "hunter2" not in str(caught.value)


def settings(store: str, roots: str) -> Settings:
    return Settings.from_environment({"MAGI2_STORE": store, "MAGI2_INPUT_ROOTS": roots, "AIRFLOW_HOME": "/airflow"})


@pytest.mark.parametrize(
    ("root", "is_apart"),
    [
        ("s3://clips/store/", False),
        ("s3://clips/store/in/", False),
        ("s3://clips/", False),
        ("s3://clips/in/", True),
        ("s3://clips/store-in/", True),
        ("s3://other/store/", True),
    ],
)
def test_prefix_that_shares_objects_with_the_store_is_refused(root: str, is_apart: bool) -> None:
    server = "?endpoint=http://10.0.0.7:8333"
    for store in ("s3://clips/store", "s3://clips/store/"):
        made = settings(store + server, root + server)
        if is_apart:
            assert [str(each) for each in deployment_roots(made).prefixes] == [root]
        else:
            with pytest.raises(ConfigError, match="the store is there too"):
                deployment_roots(made)


def test_secret_that_is_not_there_by_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="MAGI2_DELIVERY_SECRETS has no 'client'"):
        input_prefixes(settings("/srv/store", "s3://studio/p/?secret=client"))
