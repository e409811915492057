"""Every random number of a clip: one generator per clip, three draws in a fixed order, nothing from the global one.

Source: MAGI-2 preview inference code (video noise, then audio noise, then the refiner's noise, one stream).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from magi2.errors import ContractError
from magi2.types import check_seed

DRAWS = ("video", "audio", "refiner")


class ClipGenerator:
    """The random stream of one clip, seeded from its seed alone.

    On the CPU (the default) one seed means the same noise on every platform; on an accelerator it is that
    accelerator's own stream. Raises InputError when the seed is not an integer from 0 to 2^53 - 1.
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(check_seed(seed))
        self._draws_done = 0

    @property
    def device_type(self) -> str:
        """The device type the state belongs to, such as "cpu" or "cuda"; store it beside `state()`."""
        return self._generator.device.type

    def video_noise(self, shape: Sequence[int]) -> Tensor:
        """Standard normal fp32 of `shape` on the generator's device: the first draw. ContractError if it is not."""
        return self._draw("video", shape)

    def audio_noise(self, shape: Sequence[int]) -> Tensor:
        """Standard normal fp32 of `shape` on the generator's device: the second draw. ContractError if it is not."""
        return self._draw("audio", shape)

    def refiner_noise(self, shape: Sequence[int]) -> Tensor:
        """Standard normal fp32 of `shape` on the generator's device: the third draw. ContractError if it is not."""
        return self._draw("refiner", shape)

    def state(self) -> Tensor:
        """The position in the stream, uint8 on the CPU: one byte counting the draws done, then torch's own state."""
        return torch.cat([torch.tensor([self._draws_done], dtype=torch.uint8), self._generator.get_state()])

    @classmethod
    def from_state(cls, state: Tensor, device_type: str, *, device: torch.device | str = "cpu") -> ClipGenerator:
        """A generator on `device` that continues where `state()` of a generator on `device_type` was taken.

        Raises ContractError when the two are not the same device type, or the state is not one of these.
        """
        restored = cls(0, device)
        if restored.device_type != device_type:
            raise ContractError(
                f"the saved random state was drawn on {device_type!r}, it cannot continue on {restored.device_type!r}",
                hint="run this stage on the device type of the earlier one, or draw noise on the cpu",
            )
        if state.dtype != torch.uint8 or state.dim() != 1 or state.numel() < 2 or int(state[0]) > len(DRAWS):
            raise ContractError(f"not a saved random state: {state.dtype}, shape {tuple(state.shape)}")
        state = state.cpu()
        try:
            restored._generator.set_state(state[1:].clone())
        except RuntimeError as error:
            raise ContractError(f"not a saved random state of a {device_type!r} generator: {error}") from error
        restored._draws_done = int(state[0])
        return restored

    def _draw(self, name: str, shape: Sequence[int]) -> Tensor:
        if DRAWS.index(name) != self._draws_done:
            expected = DRAWS[self._draws_done] if self._draws_done < len(DRAWS) else "nothing more"
            raise ContractError(f"{name} noise asked for, the clip's next draw is {expected}")
        noise = torch.randn(tuple(shape), generator=self._generator, dtype=torch.float32, device=self._generator.device)
        self._draws_done += 1
        return noise
