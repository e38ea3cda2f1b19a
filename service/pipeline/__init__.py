"""The pipeline: from a photo and a question to a prediction."""
