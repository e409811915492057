"""The image-to-video caption: what the still shows, the shots that follow from it, and their sound and text.

Field names, nesting and order are the wire contract of MAGI-2 preview prompt enhancement. Time ranges are
`[start, end]` in seconds; identifiers are free handles, unique per list.
"""

from __future__ import annotations

from magi2.prompts.wire import Closed


class GlobalCaption(Closed):
    core_caption: str
    format_and_structure: str
    narrative_and_emotional_design: str
    visual_design: str
    audio_design: str
    continuity_requirements: list[str]


class Reference(Closed):
    reference_identifier: str
    reference_type: str
    label: str
    role: str
    description: str
    appearance_or_design: str


class Shot(Closed):
    shot_identifier: str
    time_range_seconds: list[float]
    scene_reference_identifier: str
    shot_caption: str
    camera_lighting_and_composition: str
    motion_and_physical_logic: str
    reference_identifiers: list[str]
    audio_event_identifiers: list[str]


class AudioEvent(Closed):
    audio_event_identifier: str
    event_type: str
    time_range_seconds: list[float]
    source_reference_identifier: str
    audio_caption: str
    spoken_text: str
    synchronization_note: str


class VisibleText(Closed):
    visible_text_identifier: str
    text: str
    time_range_seconds: list[float]
    position_and_role: str
    source_reference_identifier: str


class I2VCaption(Closed):
    """A whole image-to-video caption."""

    global_caption: GlobalCaption
    reference_bank: list[Reference]
    shot_timeline: list[Shot]
    audio_event_timeline: list[AudioEvent]
    visible_text: list[VisibleText]
    generation_requirements: list[str]
