"""Which rows of the published expert tensors a rank reads."""

from __future__ import annotations

from torch import Tensor

from magi2.errors import CheckpointError
from magi2.models.checkpoint import ARCHITECTURE_HINT, SafetensorsFolder
from magi2.models.preview.config import SCALE_SUFFIX
from magi2.models.preview.expert_share import ExpertShare
from magi2.parallel.mesh import Mesh

_MATRICES = (".moe_mlp.W_gate", ".moe_mlp.W_up", ".moe_mlp.W_down")
_EXPERTS = (*_MATRICES, *(f"{name}{SCALE_SUFFIX}" for name in _MATRICES))
_ROUTERS = (".moe_mlp.gate", ".moe_mlp.router.expert_bias", ".moe_mlp.router.expert_bias_ema")


class RankSource:
    """A checkpoint folder of which one rank sees its share of the experts and all else; a `TensorSource`.

    All ranks read in the same order and wait for each other at every new file.
    """

    def __init__(self, folder: SafetensorsFolder, share: ExpertShare | None, num_heads: int, mesh: Mesh) -> None:
        self._folder, self._share, self._mesh = folder, share, mesh
        self._num_rows = num_heads * share.num_experts if share else 0
        self._file = ""

    @property
    def location(self) -> str:
        return self._folder.location

    def names(self) -> list[str]:
        return self._folder.names()

    def file_of(self, name: str) -> str:
        return self._folder.file_of(name)

    def shape(self, name: str) -> tuple[int, ...]:
        shape, rows = self._folder.shape(name), self._rows(name)
        return shape if rows is None else (len(rows), *shape[1:])

    def read(self, name: str) -> Tensor:
        """The tensor, or this rank's rows of it. Raises: CheckpointError when it is not that of all experts."""
        if self.file_of(name) != self._file:
            self._file = self.file_of(name)
            self._mesh.world.barrier(self._mesh.device)
        rows = self._rows(name)
        if rows is None:
            return self._folder.read(name)
        found = self._folder.shape(name)[0]
        if found != self._num_rows:
            place = f"{self.file_of(name)}: {name}"
            raise CheckpointError(f"{place}: {found} experts, the model wants {self._num_rows}", hint=ARCHITECTURE_HINT)
        return self._folder.read_rows(name, rows)

    def _rows(self, name: str) -> range | None:
        if self._share is None:
            return None
        if name.endswith(_EXPERTS):
            return self._share.expert_rows
        return self._share.router_rows if name.endswith(_ROUTERS) else None
