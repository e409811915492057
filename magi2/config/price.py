"""What an hour of an accelerator costs, and what a batch may cost by that."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Self

from magi2.config.settings import Settings
from magi2.errors import ConfigError, InputError


@dataclass(frozen=True)
class Price:
    """What an hour of one accelerator costs, in `currency`."""

    per_accelerator_hour: float
    currency: str

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """The deployment's price, or None when none is set."""
        if settings.price_per_accelerator_hour is None:
            return None
        return cls(settings.price_per_accelerator_hour, settings.currency)

    def cost(self, accelerator_seconds: float) -> float:
        """What these seconds cost."""
        return accelerator_seconds / 3600 * self.per_accelerator_hour

    def text(self, amount: float) -> str:
        """An amount in this currency for people."""
        return amount_text(amount, self.currency)


def amount_text(amount: float, currency: str) -> str:
    """An amount for people, such as `12.30 USD`; small ones keep digits that count."""
    digits = 2 if amount >= 0.1 or amount == 0 else 4
    return f"{amount:,.{digits}f} {currency}".rstrip()


def price_for_budget(settings: Settings) -> Price:
    """The price by which a budget is watched. Raises ConfigError when none is set."""
    price = Price.of(settings)
    if price is None or price.per_accelerator_hour == 0:
        raise ConfigError("a budget needs a price", hint="set MAGI2_PRICE_PER_ACCELERATOR_HOUR, and MAGI2_CURRENCY")
    return price


def check_budget(budget: float | None) -> None:
    """Raise InputError when a budget is no amount that can be spent; None is no limit."""
    if budget is not None and not 0 < budget < inf:
        raise InputError(f"budget is {budget}, must be more than 0", hint="leave it out for no limit")
