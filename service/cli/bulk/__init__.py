"""Bulk: many photos -> labels in Parquet files, without a server.

    photos.py (a folder, a list, an object store) --names--> tagging.py --records--> parts.py

`run.py` tells the story in one process, `ray_run.py` on a Ray cluster. It needs pyarrow (the
extra `bulk`); nothing else of the service imports it.
"""
