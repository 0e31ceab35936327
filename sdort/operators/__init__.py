"""What sdort knows of operators, one file an operator."""
