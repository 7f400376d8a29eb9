"""How the demo model is made: data, tokenizer, model, training loop, measurements.

Run it with `python -m pagedrun.recipes.demo.training --out FOLDER`.
"""
