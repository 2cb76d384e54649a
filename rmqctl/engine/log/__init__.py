"""The commitlog as something to append to: files, their rolling, when they are forced to disk."""
