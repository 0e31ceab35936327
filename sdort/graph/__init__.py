"""A model in memory: the graph, weights that are described and not loaded, symbolic sizes, signatures."""
