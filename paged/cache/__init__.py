"""KV memory: accounting of blocks, tensors behind them, and the prefix store."""
