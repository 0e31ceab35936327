"""What is in a model, and where its nodes run."""
