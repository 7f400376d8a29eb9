"""What a job writes and leaves behind: rows, manifest, report, and finding them again."""
