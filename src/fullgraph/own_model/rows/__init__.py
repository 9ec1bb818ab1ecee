"""Follow rows of nodes and edges through every operation of a user's model."""
