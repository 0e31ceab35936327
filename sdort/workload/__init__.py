"""Workloads: cases to measure, and the inputs that components get."""
