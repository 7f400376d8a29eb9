"""Models in GGUF files: what config.json and safetensors files say of others."""
