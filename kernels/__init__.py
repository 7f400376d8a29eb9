"""Tensors in, tensors out. Nothing here knows a sequence, a block pool or a model.

`Backend` is what a model asks of them; each folder implements it in its `backend.py`.
`reference` is the definition of correct, in plain PyTorch. `cpu` (Numba and oneDNN) and `gpu`
(Triton) are its fast twins: one file stem per op in each of them, in tests/ and in benchmarks/.
Importing this package imports neither torch nor numba nor triton.
"""
