"""How much of anything may come in from outside. Sizes are in bytes, lengths in characters."""

MAX_TEXT_BYTES = 2**20
"""A prompt, a negative prompt, a profile or an architecture in a file of its own."""
MAX_PICTURE_BYTES = 64 * 2**20
MAX_BATCH_BYTES = 64 * 2**20
MAX_INLINE_BYTES = 2**20
"""Rows that come with a request in place of a file."""
MAX_KEY_BYTES = 1024
"""Of an object in a bucket, as S3 has it."""
MAX_SIDECAR_BYTES = 4 * 2**20
"""Prompt, caption and negative prompt, the images of 32 figures by digest, and some kilobytes of settings."""
MAX_ROWS = 100_000
"""Also after rows that stand for several clips were counted as those."""
MAX_ROW_CHARS = 2**21
"""As written: more than the longest prompt takes with every character escaped."""
MAX_PROMPT_CHARS = 100_000
"""Several times what the text encoder reads, for structured captions that are compacted first."""
MAX_NAME_CHARS = 200
MAX_NAMES = 1_000
"""Rows that may be one and the same clip."""
MAX_VARIANTS = 1_000
"""Of one row, and as many seeds."""
MAX_PROFILES = 128
"""Different settings of one batch: each has shards of its own."""
MAX_TAGS = 50
MAX_TAG_CHARS = 100
MAX_IMAGES = 32
"""Of one clip."""
MAX_JSON_DEPTH = 100
MAX_YAML_DEPTH = 20
MAX_YAML_ALIASES = 10
"""Each may double what a text stands for."""
MAX_YAML_CHARS = 2**16
MAX_NUMBER_CHARS = 40
"""Python takes time that grows with the square of a number's length."""
MAX_OVERRIDES = 100
MAX_OVERRIDE_CHARS = 4_096
MAX_QUOTED_CHARS = 200
"""Of what somebody wrote, in an error."""
