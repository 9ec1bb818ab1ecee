"""A user's own model: any module that is called as PyG's are, on one rank's rows."""
