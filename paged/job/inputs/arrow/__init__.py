"""Rows of Arrow tables: Parquet files and datasets."""
