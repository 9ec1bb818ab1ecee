"""The graphs of the examples."""

import numpy as np

import fullgraph as fg


def with_edge_features(graph: fg.Graph) -> fg.Graph:
    """The same graph with features of arcs: the similarity of the two ends, and the number of arcs into them."""
    source, target = graph.edge_index
    x = np.asarray(graph.x if isinstance(graph.x, np.ndarray) else graph.x.toarray(), dtype=np.float32)
    length = np.maximum(np.linalg.norm(x, axis=1), 1e-6)
    alike = np.einsum("ef,ef->e", x[source], x[target]) / (length[source] * length[target])
    degree = np.log1p(np.diff(graph.indptr))
    features = np.stack([alike, degree[source], degree[target]], axis=1).astype(np.float32)
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    return fg.Graph(graph.edge_index, graph.x, graph.y, masks, edge_attr=features, name=graph.name)
