"""What the tests stand on: golden stores, tiny stores, damage, snapshots, the one adapter."""
