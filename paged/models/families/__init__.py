"""Families of models, one file each: reading of config.json."""
