"""Messages from text or objects, and the loop of `append` over them."""
