"""Linear methods: plain and quantized weights of linear layers, and layouts of MoE experts."""
