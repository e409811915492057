"""Where the clips of a batch are brought: decided by the row, else by the batch's options, else by the profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from magi2.delivery.names import DEFAULT_TEMPLATE, OUT, OUT_TEMPLATE, NameContext, fill, folded
from magi2.errors import InputError
from magi2.inputs.text import quoted
from magi2.media.delivery import DeliverySpec
from magi2.types import Clip, Delivery


def no_targets(name: str) -> str:
    """For a deployment that has none. Raises InputError."""
    raise InputError(f"delivery target {quoted(name)} is not configured", hint="MAGI2_DELIVERY_TARGETS names none")


@dataclass(frozen=True)
class Placing:
    """What a batch says of its clips' places; `require` raises InputError for a target that is not configured.

    `target` and `name` are the batch's own, for rows that name none; `otherwise` is the target of clips that nothing
    else brings anywhere.
    """

    batch: str = "batch"
    target: str | None = None
    name: str | None = None
    require: Callable[[str], str] = no_targets
    otherwise: str | None = None

    def deliveries(
        self, clip: Clip, spec: DeliverySpec, *, target: str | None = None, name: str | None = None
    ) -> tuple[Delivery, ...]:
        """Where one row wants its clip, which has the row's name first; nowhere when nothing names a target.

        Raises: InputError for an unknown target, or a name that is not safe or has no target.
        """
        where = target or self.target or spec.target or self.otherwise
        if where is None:
            if name is not None:
                raise InputError(f"delivery name {quoted(name)}: there is no target to bring the clip to")
            return ()
        template = name or self.name or spec.name or (OUT_TEMPLATE if where == OUT else DEFAULT_TEMPLATE)
        row = clip.names[0] if clip.names else "clip"
        return (Delivery(self.require(where), fill(template, clip, NameContext(self.batch, row))),)


UNPLACED = Placing()
"""That of a batch whose rows alone could say where their clips go, of a deployment without targets."""


def merged(known: tuple[Delivery, ...], more: tuple[Delivery, ...]) -> tuple[Delivery, ...]:
    """The places of a clip that two rows ask for; of names that some file system takes for one, the first."""
    places: dict[tuple[str, str], Delivery] = {}
    for each in (*known, *more):
        places.setdefault((each.target, folded(each.name)), each)
    return tuple(places.values())
