"""The strategy `auto`: chooses the fastest strategy by its predicted epoch time when a run begins."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fullgraph.errors import InputError
from fullgraph.recipes.base import Strategy
from fullgraph.values import OneOf

if TYPE_CHECKING:
    from fullgraph.run import Run


@dataclass(frozen=True, kw_only=True)
class Auto(Strategy):
    """The fastest exact strategy, as `fullgraph plan` ranks them; `allow` stale, lossy or both lets it choose others.

    cluster: a file that describes the machines; if empty, this machine.
    """

    allow: tuple[Annotated[str, OneOf("stale", "lossy")], ...] = ()
    cluster: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.allow)) != len(self.allow):
            raise InputError(f"allow={','.join(self.allow)} names a risk twice; write stale, lossy or stale,lossy")

    def choose(self, run: "Run", shards: Path) -> tuple[str, Strategy, str]:
        """Return the strategy, as a name and as a value, and the reason; the cost model is imported only here."""
        from fullgraph.lab.cost.plan import choose

        return choose(run, self, shards)
