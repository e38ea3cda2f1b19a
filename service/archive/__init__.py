"""Tags of photos: keywords in their files and XMP sidecars; needs lxml, knows no model."""
