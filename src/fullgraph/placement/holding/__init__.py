"""What a rank holds of a graph, whatever the placement: rows and arcs, matrices, whole structures, orders of rows."""
