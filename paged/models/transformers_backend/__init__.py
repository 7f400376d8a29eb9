"""Models that the code of Transformers computes, with paged KV memory or with their own caches."""
