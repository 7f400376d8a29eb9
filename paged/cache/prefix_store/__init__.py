"""The prefix store: keys and values of shared prefixes, kept in a folder from run to run."""
