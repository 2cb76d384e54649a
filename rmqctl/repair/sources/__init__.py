"""What `recover --from` takes lost bytes from: stores, and messages kept in other forms."""
