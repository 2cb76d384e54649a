"""Messages as text or objects, and the loop of `append` over them."""
