"""Whatever is quickest: chosen when a run begins, by what each strategy is foretold to take."""

from dataclasses import dataclass
from typing import Annotated

from fullgraph.errors import InputError
from fullgraph.recipes.base import Strategy
from fullgraph.values import OneOf


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
