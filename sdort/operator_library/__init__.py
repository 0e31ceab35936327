"""The custom operator library: built from ``custom_ops/``, kept in the cache, registered with every session."""
