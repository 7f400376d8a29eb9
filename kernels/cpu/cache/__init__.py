"""The KV memory: tokens stored in it, as codes where it is quantised, and its blocks copied."""
