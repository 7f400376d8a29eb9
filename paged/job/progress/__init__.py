"""How far a run is: rows by how they ended, the latest answers."""
