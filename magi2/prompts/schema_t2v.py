"""The text-to-video caption: a global layer that holds for the whole clip, and a timeline of segments.

Field names, nesting and order are the wire contract of MAGI-2 preview prompt enhancement. Spans are `MM:SS.s-MM:SS.s`,
instants `MM:SS.s`; identifiers are `<subject N>`, `<object N>` and `event N`.
"""

from __future__ import annotations

from magi2.prompts.wire import Closed


class Aesthetics(Closed):
    style: str
    contrast: str
    saturation: str
    color_scheme: str
    visual_effects: str
    mood_atmosphere: str


class DialogueBaseline(Closed):
    language: str
    speaker_tags: list[str]


class AudioBaseline(Closed):
    ambience: str
    dialogue: DialogueBaseline


class StaticObject(Closed):
    object_id: str
    description: str
    shape_and_color: str
    texture: str
    relative_size: str
    position: str
    orientation: str


class VideoMetadata(Closed):
    duration: float
    aspect_ratio: str


class LightingBaseline(Closed):
    conditions: str
    direction: str
    shadows: str
    source_consistency: str


class EnvironmentBaseline(Closed):
    background_setting: str


class VisualAttributes(Closed):
    gender: str
    ethnicity: str
    age_group: str
    facial_features: str
    clothing: str
    appearance_details: str


class StaticSubject(Closed):
    subject_id: str
    description: str
    position: str
    orientation: str
    visual_attributes: VisualAttributes


class CameraCinematography(Closed):
    overall_camera_style: str
    default_depth_of_field: str
    lens_focal_length: str


class GlobalLayer(Closed):
    context: str
    description: str
    aesthetics: Aesthetics
    audio_baseline: AudioBaseline
    objects_static: list[StaticObject]
    video_metadata: VideoMetadata
    lighting_baseline: LightingBaseline
    environment_baseline: EnvironmentBaseline
    alive_subjects_static: list[StaticSubject]
    camera_cinematography: CameraCinematography


class CameraMovement(Closed):
    type: str
    direction: str
    intensity: str


class CameraDelta(Closed):
    focus: str
    camera_position: str
    composition: str
    camera_movement: CameraMovement


class SegmentBasicInfo(Closed):
    timestamp_range: str
    segment_description: str
    active_background: str
    lighting_delta: str
    camera_delta: CameraDelta


class SpatialPosition(Closed):
    location: str
    relative_size: str
    orientation: str


class DynamicState(Closed):
    state_change: str
    motion_detail: str
    visible_condition: str


class SegmentObject(Closed):
    object_id: str
    timestamp: str
    number_of_objects: int
    dynamic_state: DynamicState
    spatial_position: SpatialPosition


class Action(Closed):
    primary_action: str
    body_configuration: str
    motion_detail: str
    interaction: str
    facial_expression: str


class SegmentSubject(Closed):
    subject_id: str
    timestamp: str
    number_of_subjects: int
    spatial_position: SpatialPosition
    action: Action


class TextRender(Closed):
    text: str
    timestamp: str
    location: str
    size: str
    color: str
    font: str
    appearance_details: str


class CausalEvent(Closed):
    event_id: str
    timestamp_range: str
    trigger: str
    effect_outcome: str
    physics: str


class DialogueLine(Closed):
    timestamp: str
    speaker: str
    text: str
    delivery: str


class AmbienceDelta(Closed):
    timestamp_range: str
    ambience: str


class SpecialAudioEvent(Closed):
    timestamp: str
    sound_description: str
    visual_sync: str


class SegmentAudio(Closed):
    dialogue_lines: list[DialogueLine]
    ambience_deltas: list[AmbienceDelta]
    special_audio_events: list[SpecialAudioEvent]


class TimelineSegment(Closed):
    segment_basic_info: SegmentBasicInfo
    objects: list[SegmentObject]
    alive_subjects: list[SegmentSubject]
    text_render: list[TextRender]
    causal_events: list[CausalEvent]
    audio: SegmentAudio


class DynamicLayer(Closed):
    timeline_segments: list[TimelineSegment]


class T2VCaption(Closed):
    """A whole text-to-video caption."""

    global_layer: GlobalLayer
    dynamic_layer: DynamicLayer
