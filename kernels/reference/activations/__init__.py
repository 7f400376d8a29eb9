"""Gates: the activations of feed-forward layers, and the gate behind attention."""
