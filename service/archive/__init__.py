"""Tags of photos: keywords in their files and XMP sidecars; needs lxml, knows no model."""

ROOT = "ml-decoder"
"""Default root of own tags; those of versions without the memory are known by it."""
