"""Tools around training: the cost model, benchmarks, checks of a machine, pages. The core does not import them."""
