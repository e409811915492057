"""A small world of moving shapes with matching sounds: what the demo checkpoint learns, and how its clips are judged.

`scenes` says what can happen, `wordings` and `reading` turn a scene into a prompt and back, `picture`, `sound`,
`video_latents` and `audio_latents` are the exact answers, `audio_autoencoder` writes the audio weights down, `judge`
measures a delivered file, `training` trains every part and `measure` measures a whole checkpoint.
"""
