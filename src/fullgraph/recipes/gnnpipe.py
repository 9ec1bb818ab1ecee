"""GNNPipe: layers over stages, chunks of the graph in time (arXiv:2308.10087); hybrid, several ways a stage."""

from typing import Any

from fullgraph.errors import InputError
from fullgraph.exchange import Wire
from fullgraph.placement import Pipeline
from fullgraph.recipes.base import Recipe
from fullgraph.recipes.free import codec_named, schedule_named


def gnnpipe(
    chunks: int = 0, shuffle: bool = True, freeze: int = 23, double: bool = True, cut: str = "",
    codec: str = "full", bits: int = 1, schedule: str = "sync",
) -> Recipe:  # fmt: skip
    """Every rank trains some layers; chunks of the graph pass from rank to rank (0: four for each stage).

    shuffle: their order, every step. freeze: steps for which the rows of chunks to come are a snapshot's. double:
    gradients to fresh rows count twice, for those that historical rows do not get. cut: the first layer of each rank
    but the first, such as 3,6 (a deep model's encoder is layer 0); measured if empty. codec, bits, schedule: between
    stages, as in `free`.
    """
    return _recipe("gnnpipe", dict(locals()), ways=1)


def gnnpipe_hybrid(
    ways: int = 0, stages: int = 0,
    chunks: int = 0, shuffle: bool = True, freeze: int = 23, double: bool = True, cut: str = "",
    codec: str = "full", bits: int = 1, schedule: str = "sync",
    halo_codec: str = "full", halo_bits: int = 1, halo_schedule: str = "sync",
) -> Recipe:  # fmt: skip
    """Stages of several ranks (`ways`), which share the nodes and exchange halos of the chunks they work on.

    ways, stages: give one of them; two ways if neither. halo_codec, halo_bits, halo_schedule: between the ways of a
    stage. The rest as in `gnnpipe`.
    """
    options = dict(locals())
    halo = Wire(
        schedule=schedule_named(halo_schedule, option="halo_schedule"),
        codec=codec_named("halo_codec", halo_codec, bits=halo_bits),
    )
    return _recipe("gnnpipe-hybrid", options, ways=ways or (0 if stages else 2), halo=halo)


def _recipe(name: str, o: dict[str, Any], *, ways: int, halo: Wire | None = None) -> Recipe:
    hop = Wire(schedule=schedule_named(o["schedule"]), codec=codec_named("codec", o["codec"], bits=o["bits"]))
    own = {key: o[key] for key in ("chunks", "shuffle", "freeze", "double")}
    return Recipe(
        name=name,
        options=o,
        placement=Pipeline,
        layout={"ways": ways, "stages": o.get("stages", 0), "hop": hop, "cut": _numbers(o["cut"]), **own},
        wire=halo or Wire(),
        narrow_first=False,
    )


def _numbers(cut: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in cut.split(",") if number)
    except ValueError as error:
        raise InputError(f"cut={cut!r}: give layer numbers with commas between them, such as 3,6") from error
