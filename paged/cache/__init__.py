"""KV memory: who holds which block, the tensors behind the blocks, the space to swap to."""
