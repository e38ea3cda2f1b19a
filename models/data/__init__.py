"""Labelled photos on disk: `labelled_folder.py` reads any of five layouts."""
