"""Routes: one file for each group of paths; thin, the work is in `pipeline/pipeline.py`."""
