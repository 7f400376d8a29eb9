"""Several engines that answer one file together, on one machine or on many."""
