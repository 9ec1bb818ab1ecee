"""Rows of nodes and edges, followed through everything that a user's model does with them."""
