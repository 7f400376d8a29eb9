"""What to run: recipes, the bundled ones, and the demo model."""
