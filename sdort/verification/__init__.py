"""Is a pipeline right: components and images against what it was made from, and where it goes wrong if it is not."""
