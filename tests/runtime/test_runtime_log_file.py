"""What of a group's output goes into an error: the cause and the end, but no prompt and no secret."""

from __future__ import annotations

import os
import time
from pathlib import Path

from magi2.runtime.log_file import bound_log, excerpt, log_folder, open_log, sweep_logs

TRACEBACK = """Traceback (most recent call last):
  File "/magi2/stages/base.py", line 10, in run
    return self.make(clip)
           ^^^^^^^^^^^^^^^
  File "/magi2/stages/preview.py", line 20, in make
    raise ValueError(text)
ValueError: {message}
"""


def log(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "log"
    path.write_text(text)
    return path


def test_absent_or_empty_log_gives_nothing(tmp_path: Path) -> None:
    assert excerpt(tmp_path / "none") == ""
    assert excerpt(log(tmp_path, "")) == ""


def test_short_log_is_quoted_as_it_is(tmp_path: Path) -> None:
    text = "2026-11-29 14:00:00,1 INFO magi2: started\nsome words\n" + TRACEBACK.format(message="bad").rstrip()
    assert excerpt(log(tmp_path, text)) == text


def test_first_traceback_is_kept_however_much_follows(tmp_path: Path) -> None:
    later = "".join(f"2026-11-29 14:00:{n % 60:02},1 INFO magi2: line {n}\n" for n in range(5000))
    text = "early\n" + TRACEBACK.format(message="the cause") + later + TRACEBACK.format(message="a consequence")
    found = excerpt(log(tmp_path, text))
    assert found.startswith("Traceback")
    assert found.index("ValueError: the cause") < found.index("[...]") < found.index("ValueError: a consequence")
    assert len(found) <= 4096


def test_rank_prefixes_do_not_hide_a_traceback(tmp_path: Path) -> None:
    text = "".join(f"[rank1]: {line}\n" for line in TRACEBACK.format(message="bad").splitlines())
    assert excerpt(log(tmp_path, text)).startswith("Traceback")


def test_no_stretch_of_free_text_is_longer_than_a_quote(tmp_path: Path) -> None:
    prompt = "\n".join(f"    scene {number}: the lamp glows, the cat sleeps" for number in range(300))
    for text in (
        prompt,
        TRACEBACK.format(message=prompt),
        "2026-11-29 14:00:00,1 INFO magi2: enhancing " + prompt,
        TRACEBACK.format(message=prompt) + "2026-11-29 14:00:00,1 ERROR magi2: ended\n",
        TRACEBACK.format(message=prompt.replace("\n", " ")),
    ):
        found = excerpt(log(tmp_path, text))
        kept = [line for line in found.splitlines() if "scene" in line]
        assert sum(map(len, kept)) <= 220, found


def test_addresses_lose_credentials_and_queries(tmp_path: Path) -> None:
    text = (
        'GET "http://host:9000/bucket/key?X-Amz-Signature=abc&X-Amz-Credential=me" failed\n'
        "postgresql://magi2:hunter2@db/catalog refused\n"
        "see https://host/plain.html\n"
    )
    found = excerpt(log(tmp_path, text))
    assert "abc" not in found
    assert "hunter2" not in found
    assert 'GET "http://host:9000/bucket/key?…" failed' in found
    assert "postgresql://…@db/catalog refused" in found
    assert "https://host/plain.html" in found


def test_binary_output_is_no_obstacle(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff\xfe\x00 noise\n" * 1000)
    assert "noise" in excerpt(path)


def test_log_that_grew_too_long_keeps_its_end_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "log"
    fd = open_log(path)
    assert path.stat().st_mode & 0o777 == 0o600
    with open(fd, "wb", buffering=0) as stream:
        stream.write(b"x" * 3 * 2**20 + b"the end\n")
        assert not bound_log(path, limit=4 * 2**20)
        assert bound_log(path, limit=2 * 2**20)
        stream.write(b"and more\n")
    data = path.read_bytes()
    assert len(data) < 1.1 * 2**20
    assert data.startswith(b"[the beginning was dropped")
    assert data.endswith(b"the end\nand more\n")


def test_old_logs_are_swept_and_young_ones_are_not(tmp_path: Path) -> None:
    assert sweep_logs(older_than_hours=1, folder=tmp_path) == []
    logs = log_folder(tmp_path)
    for name in ("old.log", "young.log", "old.txt"):
        os.close(open_log(logs / name))
    for name in ("old.log", "old.txt"):
        os.utime(logs / name, times=(time.time() - 7200, time.time() - 7200))
    assert sweep_logs(older_than_hours=1, dry_run=True, folder=tmp_path) == ["old.log"]
    assert sweep_logs(older_than_hours=1, folder=tmp_path) == ["old.log"]
    assert sorted(path.name for path in logs.iterdir()) == ["old.txt", "young.log"]
