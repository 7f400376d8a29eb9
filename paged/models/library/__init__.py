"""Models that the code of Transformers computes, over pagedrun's cache and with its products."""
