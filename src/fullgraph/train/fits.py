"""Check whether a run can fit this machine, before a rank starts."""

from torch.nn.parameter import is_lazy

from fullgraph.nn import ModelSpec
from fullgraph.partition import Manifest
from fullgraph.resources import require_memory, require_ranks
from fullgraph.tasks import task_for
from fullgraph.train.config import TrainConfig

COPIES = 3  # of the weights: current weights, gradients, best weights; the optimizer's copies are added


def require_run_fits(manifest: Manifest, spec: ModelSpec, config: TrainConfig) -> None:
    """Refuse a run that cannot fit, before its ranks allocate memory, descriptors, ports or threads."""
    require_ranks(manifest.parts, config.threads)
    if config.device == "cpu":
        width = task_for(config.task, manifest.graph, cut=True).out_width(manifest.graph)
        weights = spec.outline(manifest.graph.features, width).parameters()
        count = sum(weight.numel() for weight in weights if not is_lazy(weight)) * (
            COPIES + getattr(config.optimizer, "slots", 2)
        )
        least = manifest.parts * count * _itemsize(config)
        least += sum(least_bytes(manifest, spec, config, rank) for rank in range(manifest.parts))
        require_memory(least, f"training on {manifest.parts} ranks of this machine")


def least_bytes(manifest: Manifest, spec: ModelSpec, config: TrainConfig, rank: int) -> int:
    """Return the minimum memory of a rank: edges, aggregated input, and every layer's output with its gradient."""
    nodes, arcs = manifest.figures.nodes[rank], manifest.figures.edges[rank]
    ahead = config.precompute and not spec.encodes and not manifest.graph.sparse
    columns = (manifest.graph.features if ahead else 0) + 2 * spec.layers * spec.hidden
    return 4 * arcs + 8 * nodes + nodes * columns * _itemsize(config)


def _itemsize(config: TrainConfig) -> int:
    return 8 if config.dtype == "float64" else 4
