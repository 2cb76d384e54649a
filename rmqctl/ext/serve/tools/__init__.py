"""What `mqadmin` and the Dashboard ask for."""
