"""The built-in hook implementations, one duty a file, registered as anybody's plugin would be."""
