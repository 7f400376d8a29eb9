"""What a run will do, told without a model: the simulation and the forecast."""
