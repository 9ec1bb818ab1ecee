"""Users' models on typed graphs: rows by node type, edges by relation."""
