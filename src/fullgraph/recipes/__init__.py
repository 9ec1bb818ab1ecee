"""The published systems, each a choice on every axis: `recipes.pipegcn(smooth="gf")`, or by name in STRATEGIES."""

from fullgraph.axes import STRATEGIES
from fullgraph.recipes.adaqp import AdaQP as adaqp
from fullgraph.recipes.base import Given, Published, Strategy, check_strategy, wires_of
from fullgraph.recipes.baselines import Isolated as none
from fullgraph.recipes.baselines import Vanilla as vanilla
from fullgraph.recipes.bns import BNS as bns
from fullgraph.recipes.distgnn import DelayedTurns as cd_r
from fullgraph.recipes.free import Free as free
from fullgraph.recipes.gnnpipe import GNNPipe as gnnpipe
from fullgraph.recipes.gnnpipe import GNNPipeHybrid as gnnpipe_hybrid
from fullgraph.recipes.mixgcn import MixGCN as mixgcn
from fullgraph.recipes.pipegcn import PipeGCN as pipegcn
from fullgraph.recipes.sancus import Sancus as sancus
from fullgraph.recipes.sylvie import SylvieA as sylvie_a
from fullgraph.recipes.sylvie import SylvieABounded as sylvie_a_bounded
from fullgraph.recipes.sylvie import SylvieS as sylvie_s
from fullgraph.recipes.varco import Fixed as fixed
from fullgraph.recipes.varco import Varco as varco
from fullgraph.recipes.varco import VarcoSlow as varco_slow


def auto(**options: object) -> Strategy:
    """The strategy that chooses another one when a run begins; its options are those of `--strategy auto`."""
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
    "sylvie_a",
    "sylvie_a_bounded",
    "sylvie_s",
    "vanilla",
    "varco",
    "varco_slow",
    "wires_of",
]
