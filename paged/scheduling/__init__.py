"""Which sequences run in the next step, what it computes, and when a sequence ends."""
