"""`recover` of a DLedger member: its log from another member, its index from its log."""
