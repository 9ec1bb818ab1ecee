from fullgraph.data.graph import Graph


def demo_graph() -> Graph:
    raise NotImplementedError
