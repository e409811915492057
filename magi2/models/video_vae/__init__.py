"""Wan2.2 video autoencoder: encodes the conditioning image, and decodes clips where time matters less than detail."""
