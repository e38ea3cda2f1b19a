"""Labelled photos on disk: `labelled_folder.py` reads either layout."""
