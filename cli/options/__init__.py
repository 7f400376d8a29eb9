"""From flags and recipes to settings, and from settings to a job."""
