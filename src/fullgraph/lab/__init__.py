"""Tools around training: the cost model, benchmarks, machine checks, HTML pages. The core does not import them."""
