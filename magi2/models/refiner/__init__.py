"""The refiner: second-stage upscaler of video latents."""
