"""Jobs: input rows to output rows, with readers, prompts, writer and manifest. The engine never
sees a file.
"""
