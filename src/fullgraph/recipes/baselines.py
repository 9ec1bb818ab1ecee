"""The baselines for all other strategies: exact training, and training without communication."""

from dataclasses import dataclass

from fullgraph.codec import CODECS, AnyCodec, BFloat16, Full, Half
from fullgraph.errors import InputError
from fullgraph.exchange import Wire
from fullgraph.placement import Partitioned
from fullgraph.recipes.base import Strategy


@dataclass(frozen=True, kw_only=True)
class Isolated(Strategy):
    """No communication: training drops the edges between parts; evaluation is exact."""

    def layout(self) -> Partitioned:
        return Partitioned(isolated=True)


@dataclass(frozen=True, kw_only=True)
class Vanilla(Strategy):
    """Exact training: fresh halo rows in every step; `codec` is full, half or bf16.

    cover: where layers only sum rows, send the fewest rows and sums of rows that serve all edges between two ranks.
    by_host: between hosts of several ranks, a row crosses once for all ranks of a host, and sums have the terms of all.
    """

    codec: AnyCodec = Full()
    cover: bool = True
    by_host: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.codec, Full | Half | BFloat16):
            name = CODECS.label(self.codec)
            ways = {"lowbit": "sylvie-s", "subsample": "fixed"}
            use = f"use --strategy {ways.get(name, f'free -o schedule=sync -o codec={name}')}"
            raise InputError(f"codec {name} is lossy, and vanilla is exact training; {use}")

    def wires(self, *, epochs: int, layers: int) -> Wire:
        return Wire(codec=self.codec)

    def layout(self) -> Partitioned:
        return Partitioned(cover=self.cover, by_host=self.by_host)
