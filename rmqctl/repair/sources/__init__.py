"""Sources of `recover --from` for lost bytes: stores, and messages kept in other forms."""
