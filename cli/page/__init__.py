"""HTML pages: self-contained files without external resources."""
