"""Messages out of any bytes, and a new store made of them."""
