"""Parts of a window's plan: what is run of it in one place."""
