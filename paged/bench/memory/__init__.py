"""What paged KV memory is worth, counted without a model."""
