"""What a delivered clip shows and sounds like, measured on its decoded picture and sound, against what was asked."""

from demo_world.judge.verdict import Verdict, judge_clip

__all__ = ["Verdict", "judge_clip"]
