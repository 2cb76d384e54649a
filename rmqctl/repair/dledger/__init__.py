"""`recover` of a DLedger member: repair its log from other members, and its index from its log."""
