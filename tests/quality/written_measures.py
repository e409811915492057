"""Measures as manifests hold them, written down instead of measured; torch-free."""

from __future__ import annotations

from typing import Any

FPS = 12.5
SECONDS = 10
GOOD_PICTURE = {
    **{"level": 120, "peak": 220, "spread": 180, "colour": 30, "noise": 1, "blocks": 0, "change": 2, "step": 60},
    **{"moved": 90, "x": 500, "y": 250, "wide": 100, "lost": 0},
}
GOOD_SOUND = {"left": -20, "right": -20, "offset": 0, "clipped": 0, "alike": 100, "crossings": 5, "lost": 0}


def measures(*, still_from: float = SECONDS, silent_from: float = SECONDS) -> dict[str, Any]:
    """Those of a good clip of ten seconds that rests or is silent from a moment on."""
    frames, slices = round(SECONDS * FPS), SECONDS * 10
    picture = {name: [value] * frames for name, value in GOOD_PICTURE.items()}
    sound = {name: [value] * slices for name, value in GOOD_SOUND.items()}
    for name in ("moved", "step", "change"):
        picture[name][round(still_from * FPS) :] = [0] * (frames - round(still_from * FPS))
    for name in ("left", "right"):
        sound[name][round(silent_from * 10) :] = [-120] * (slices - round(silent_from * 10))
    return {
        "picture": {"fps": FPS, **{name: " ".join(map(str, column)) for name, column in picture.items()}},
        "sound": {"seconds": SECONDS, **{name: " ".join(map(str, column)) for name, column in sound.items()}},
    }
