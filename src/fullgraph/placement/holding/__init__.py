"""Parts that all placements share: arcs and matrices, live rows, precomputed input, whole structures, row orders."""
