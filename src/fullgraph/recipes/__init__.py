"""The published systems, each as a choice on every axis: `recipes.pipegcn(smooth="gf")`, or by name in STRATEGIES."""

from fullgraph.axes import STRATEGIES
from fullgraph.recipes.base import Given, Published, Strategy, check_strategy, wires_of
from fullgraph.recipes.baselines import Isolated as none
from fullgraph.recipes.baselines import Vanilla as vanilla
from fullgraph.recipes.free import Free as free
from fullgraph.recipes.gnnpipe import GNNPipe as gnnpipe
from fullgraph.recipes.gnnpipe import GNNPipeHybrid as gnnpipe_hybrid
from fullgraph.recipes.halos import BNS as bns
from fullgraph.recipes.halos import AdaQP as adaqp
from fullgraph.recipes.halos import DelayedTurns as cd_r
from fullgraph.recipes.halos import Fixed as fixed
from fullgraph.recipes.halos import PipeGCN as pipegcn
from fullgraph.recipes.halos import Sancus as sancus
from fullgraph.recipes.halos import SylvieA as sylvie_a
from fullgraph.recipes.halos import SylvieABounded as sylvie_a_bounded
from fullgraph.recipes.halos import SylvieS as sylvie_s
from fullgraph.recipes.halos import Varco as varco
from fullgraph.recipes.halos import VarcoSlow as varco_slow
from fullgraph.recipes.mixgcn import MixGCN as mixgcn
from fullgraph.recipes.steady import SteadyHalos as steady


def auto(**options: object) -> Strategy:
    """The strategy that chooses another strategy at the start of a run; it takes the options of `--strategy auto`."""
    made: Strategy = STRATEGIES.make("auto", **options)
    return made


__all__ = [
    "STRATEGIES",
    "Given",
    "Published",
    "Strategy",
    "adaqp",
    "auto",
    "bns",
    "cd_r",
    "check_strategy",
    "fixed",
    "free",
    "gnnpipe",
    "gnnpipe_hybrid",
    "mixgcn",
    "none",
    "pipegcn",
    "sancus",
    "steady",
    "sylvie_a",
    "sylvie_a_bounded",
    "sylvie_s",
    "vanilla",
    "varco",
    "varco_slow",
    "wires_of",
]
