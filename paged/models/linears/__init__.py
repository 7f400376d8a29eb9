"""The ways in which a checkpoint holds linear layers, one file each."""
