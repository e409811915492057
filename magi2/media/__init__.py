"""Pictures and sound in files: reference images, frames, the lossless intermediate, delivery, checks, posters."""
