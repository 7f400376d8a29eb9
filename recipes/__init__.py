"""Recipes: the loader, the bundled recipes, and the demo model."""
