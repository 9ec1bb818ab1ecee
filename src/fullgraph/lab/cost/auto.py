"""Whatever is quickest: chosen when a run begins, by what each strategy is foretold to take."""

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
    """The quickest exact strategy, as `fullgraph plan` ranks them; `allow` stale, lossy or both lets it choose others.

    cluster: a file that describes the machines; if empty, this one.
    """

    allow: tuple[Annotated[str, OneOf("stale", "lossy")], ...] = ()
    cluster: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.allow)) != len(self.allow):
            raise InputError(f"allow={','.join(self.allow)} names one twice; write stale, lossy or stale,lossy")

    def choose(self, run: "Run", shards: Path) -> tuple[str, Strategy, str]:
        """The strategy to take, by name and as a value, and the reason; the model is imported here, not with a name."""
        from fullgraph.lab.cost.plan import choose

        return choose(run, self, shards)
