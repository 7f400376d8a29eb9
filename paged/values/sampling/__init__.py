"""How one request wants its tokens chosen, and what it gets told of them."""
