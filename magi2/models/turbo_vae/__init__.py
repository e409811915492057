"""Turbo video decoder: turns every clip's latents into frames, in independent windows."""
