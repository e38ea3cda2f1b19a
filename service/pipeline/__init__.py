"""The pipeline: the story of a request."""
