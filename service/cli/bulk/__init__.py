"""Bulk: labels of many photos in Parquet files, without a server; needs pyarrow."""
