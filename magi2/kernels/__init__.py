"""Triton kernels of the preview layer, one idea per file, with plain torch references in `reference`.

They need torch and triton only. Sums have a fixed order, so results repeat bit for bit; nothing waits for the device.
"""
