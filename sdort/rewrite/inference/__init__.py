"""Symbolic shape and value inference: the facts of a graph, and the rules of standard operators by kind."""
