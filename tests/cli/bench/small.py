"""Arguments that make a bench take a moment."""

from pagedrun.cli.bench.kernels import KernelsOptions

TINY = ["--shape", "tiny", "--dtype", "float32"]

SMALL = [*TINY, *["--rows", "4", "--shared", "48", "--unique", "8", "--output", "4"]]

# A layer too small for its caches, as `bench kernels` gets it from the command line.
KERNELS = KernelsOptions(shape="tiny", batches="1,2", repeat=2, contexts="40", only="decode")

SIZES = [
    *["--context", "40,80", "--batch", "2", "--prefix", "128", "--group", "3"],
    *["--chunk", "8,24", "--before", "0,16", "--repeat", "2"],
]

HEADS = ["--heads", "8", "--kv-heads", "4", "--head-dim", "32", "--block-size", "8"]
