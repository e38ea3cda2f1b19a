"""Images: bytes to pixels, and which files of a folder are photos."""
