"""One job on many engines: who runs what, and what becomes of it when one of them dies."""
