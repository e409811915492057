"""Sampling: random numbers, solver, guidance and the denoising loop of the preview stage."""
