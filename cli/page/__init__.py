"""The HTML pages: one file each, complete in itself, that nothing from elsewhere can change."""
