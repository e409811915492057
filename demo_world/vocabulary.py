"""The words of the demo's prompts in English and Chinese. `{q}` is where a word for the speed may stand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from demo_world.scenes import Motion, Shape, Size, Sound, Speed

FIGURE = "<Figure 1>"
"""How a prompt names its reference image."""


@dataclass(frozen=True)
class Vocabulary:
    """Phrases by meaning. The first motion and sound of each tuple is the plainest."""

    shapes: Mapping[Shape, str]
    colours: Mapping[str, str]
    sizes: Mapping[Size, str]
    speeds: Mapping[Speed, tuple[str, ...]]
    motions: Mapping[Motion, tuple[str, ...]]
    sounds: Mapping[Sound, tuple[str, ...]]
    backgrounds: tuple[str, ...]
    is_spaced: bool


ENGLISH = Vocabulary(
    shapes={"circle": "circle", "square": "square", "triangle": "triangle"},
    colours={
        **{"red": "red", "green": "green", "blue": "blue", "yellow": "yellow", "purple": "purple"},
        **{"white": "white", "black": "black", "gray": "gray", "orange": "orange"},
    },
    sizes={"small": "small", "large": "large"},
    speeds={"slow": ("slowly", "gently"), "fast": ("quickly", "fast", "rapidly")},
    motions={
        "right": (
            *("moves {q}from left to right", "moves {q}left to right", "slides {q}to the right"),
            *("travels {q}to the right", "glides {q}from the left side to the right side"),
        ),
        "left": (
            *("moves {q}from right to left", "moves {q}right to left", "slides {q}to the left"),
            *("travels {q}to the left", "glides {q}from the right side to the left side"),
        ),
        "up": (
            *("moves {q}up", "rises {q}", "moves {q}from bottom to top", "travels {q}upward"),
            "floats {q}from the bottom to the top",
        ),
        "down": (
            *("moves {q}down", "sinks {q}", "moves {q}from top to bottom", "travels {q}downward"),
            "drops {q}from the top to the bottom",
        ),
        "down_right": (
            "moves {q}diagonally from the top left to the bottom right",
            "slides {q}diagonally down and to the right",
            "travels {q}diagonally to the bottom right",
        ),
        "up_right": (
            "moves {q}diagonally from the bottom left to the top right",
            "slides {q}diagonally up and to the right",
            "travels {q}diagonally to the top right",
        ),
        "down_left": (
            "moves {q}diagonally from the top right to the bottom left",
            "slides {q}diagonally down and to the left",
            "travels {q}diagonally to the bottom left",
        ),
        "up_left": (
            "moves {q}diagonally from the bottom right to the top left",
            "slides {q}diagonally up and to the left",
            "travels {q}diagonally to the top left",
        ),
        "bounce": ("bounces {q}up and down", "bounces {q}on the floor", "jumps {q}up and down"),
        "sway": (
            "moves {q}from side to side",
            "bounces {q}between the left and right walls",
            "swings {q}from side to side",
        ),
        "spin": ("spins {q}in place", "rotates {q}in the center", "turns {q}around its center"),
        "still": ("stays still", "does not move", "rests motionless"),
    },
    sounds={
        "low": ("a low tone", "a deep tone", "a low hum"),
        "mid": ("a medium tone", "a middle tone", "a steady medium tone"),
        "high": ("a high tone", "a high pitched tone", "a shrill high tone"),
        "rise": ("a rising tone", "a tone that rises in pitch", "a rising sweep"),
        "fall": ("a falling tone", "a tone that falls in pitch", "a falling sweep"),
        "beeps": ("a beep at every bounce", "a beep on each contact", "beeps in step with the bounces"),
        "buzz": ("a buzzing noise", "a harsh buzz", "a noisy buzz"),
        "silence": ("no sound", "silence", "no audio"),
    },
    backgrounds=("{colour} background", "{colour} backdrop", "plain {colour} background"),
    is_spaced=True,
)

CHINESE = Vocabulary(
    shapes={"circle": "圆形", "square": "正方形", "triangle": "三角形"},
    colours={
        **{"red": "红色", "green": "绿色", "blue": "蓝色", "yellow": "黄色", "purple": "紫色"},
        **{"white": "白色", "black": "黑色", "gray": "灰色", "orange": "橙色"},
    },
    sizes={"small": "小的", "large": "大的"},
    speeds={"slow": ("缓慢地", "慢慢地"), "fast": ("快速地", "迅速地")},
    motions={
        "right": ("{q}从左向右移动", "{q}从左边滑到右边"),
        "left": ("{q}从右向左移动", "{q}从右边滑到左边"),
        "up": ("{q}向上移动", "{q}从底部升到顶部"),
        "down": ("{q}向下移动", "{q}从顶部落到底部"),
        "down_right": ("{q}从左上角斜着移动到右下角", "{q}斜着滑向右下角"),
        "up_right": ("{q}从左下角斜着移动到右上角", "{q}斜着滑向右上角"),
        "down_left": ("{q}从右上角斜着移动到左下角", "{q}斜着滑向左下角"),
        "up_left": ("{q}从右下角斜着移动到左上角", "{q}斜着滑向左上角"),
        "bounce": ("{q}上下弹跳", "{q}在地面上弹跳"),
        "sway": ("{q}左右来回移动", "{q}在左右两壁之间来回弹动"),
        "spin": ("{q}原地旋转", "{q}绕着中心转动"),
        "still": ("静止不动", "一动不动"),
    },
    sounds={
        "low": ("低沉的音调", "低音"),
        "mid": ("中等的音调", "中音"),
        "high": ("尖锐的音调", "高音"),
        "rise": ("逐渐升高的音调", "上升的音调"),
        "fall": ("逐渐降低的音调", "下降的音调"),
        "beeps": ("每次碰撞时的哔声", "每次弹跳时的哔声"),
        "buzz": ("嗡嗡的噪声", "刺耳的嗡嗡声"),
        "silence": ("没有声音", "一片寂静"),
    },
    backgrounds=("{colour}背景", "纯{colour}背景"),
    is_spaced=False,
)
