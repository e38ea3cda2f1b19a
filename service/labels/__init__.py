"""Label sets of the user: definition -> embeddings -> queries of the open head -> snapshot."""
