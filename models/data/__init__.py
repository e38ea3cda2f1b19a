"""Labelled photos on disk: `reader.py` reads any of five layouts."""
