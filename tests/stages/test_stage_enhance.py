"""The enhance stage: which caption is stored under which key, and who is told that it was a fallback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from magi2.config.settings import Settings
from magi2.errors import EnhancementError, InputError, PromptTooLongError
from magi2.prompts.caption import Caption
from magi2.stages.context import StageContext
from magi2.stages.enhance import FALLBACK
from magi2.stages.prepare import prepare
from magi2.stages.render import run_stage
from magi2.types import StageName
from tests.render_helpers import make_clip, small_profile

Answer = Callable[[str, str], Caption]


def by_model(prompt: str, mode: str) -> Caption:
    return Caption(f"a caption of {prompt}", mode_requested=mode, mode_used=mode, model="tester")


def by_fallback(prompt: str, mode: str) -> Caption:
    return Caption(f"a structure of {prompt}", mode_requested=mode, mode_used="offline", fallback=mode != "offline")


def no_answer(prompt: str, mode: str) -> Caption:
    raise EnhancementError("the language model declined")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Answer]:
    """What the next calls of `enhance` give; the last one stays."""
    queue: list[Answer] = []

    def enhance(prompt: str, *, mode: str, **arguments: Any) -> Caption:
        return (queue.pop(0) if len(queue) > 1 else queue[0])(prompt, mode)

    monkeypatch.setattr("magi2.stages.enhance.enhance", enhance)
    return queue


def context_of(checkpoint: Path, store: Path, mode: str) -> StageContext:
    settings = Settings(ckpt_root=checkpoint, store=str(store), pe_base_url="http://127.0.0.1:1/v1")
    return prepare(small_profile(f"enhancement.mode={mode}"), settings, ())


def test_a_fallback_is_flagged_and_stored_as_what_it_is(
    answers: list[Answer], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    answers.append(by_fallback)
    context = context_of(tiny_checkpoint, tmp_path, "llm-then-offline")
    clip = make_clip(context.book.profile)
    (result,) = run_stage(context, StageName.ENHANCE, [clip])
    assert (result.state, result.flags) == ("made", (FALLBACK,))
    assert result.key == context.book.enhance(clip, "offline").key != context.book.enhance(clip).key
    assert context.caption(clip).text.startswith("a structure of")

    offline = context_of(tiny_checkpoint, tmp_path, "offline")
    (result,) = run_stage(offline, StageName.ENHANCE, [make_clip(offline.book.profile)])
    assert (result.state, result.flags) == ("reused", ()), "who asked for it is not told of a fallback"


def test_the_models_caption_wins_over_an_earlier_fallback(
    answers: list[Answer], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    answers.extend([by_fallback, by_model])
    texts = []
    for _ in range(2):
        context = context_of(tiny_checkpoint, tmp_path, "llm-then-offline")
        clip = make_clip(context.book.profile)
        run_stage(context, StageName.ENHANCE, [clip])
        texts.append(context.caption(clip).text.split()[1])
    assert texts == ["structure", "caption"]
    (result,) = run_stage(context, StageName.ENHANCE, [clip])
    assert (result.state, result.flags) == ("reused", ())


def test_a_clip_without_a_caption_fails_alone(answers: list[Answer], tiny_checkpoint: Path, tmp_path: Path) -> None:
    answers.extend([by_model, no_answer, by_model])
    context = context_of(tiny_checkpoint, tmp_path, "llm")
    clips = [make_clip(context.book.profile, prompt) for prompt in ("one", "two", "three")]
    results = run_stage(context, StageName.ENHANCE, clips)
    assert [result.error and result.error.code for result in results] == [None, "enhancement", None]
    with pytest.raises(InputError, match="run the enhance stage first"):
        context.caption(clips[1])


def test_without_an_endpoint_prompts_pass_byte_for_byte(tiny_checkpoint: Path, tmp_path: Path) -> None:
    profile = small_profile()
    context = prepare(profile, Settings(ckpt_root=tiny_checkpoint, store=str(tmp_path)), ())
    clip = make_clip(profile, "  an «exact»\n prompt ")
    run_stage(context, StageName.ENHANCE, [clip])
    assert context.book.enhancement_mode == "off"
    assert context.caption(clip).text == clip.prompt


def test_a_caption_of_too_many_tokens_fails_before_an_accelerator_is_taken(
    answers: list[Answer], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    answers.append(lambda prompt, mode: Caption("word " * 8_000, mode_requested=mode, mode_used=mode, model="tester"))
    context = context_of(tiny_checkpoint, tmp_path, "llm")
    clip = make_clip(context.book.profile)
    (result,) = run_stage(context, StageName.ENHANCE, [clip])
    assert result.state == "failed" and isinstance(result.error, PromptTooLongError)
    assert "tokens, limit 7,000" in str(result.error)
    assert context.store.find(StageName.ENHANCE, context.book.enhance(clip).key) is None
