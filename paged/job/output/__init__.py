"""Outputs of a job: rows, manifest, report, and their readers."""
