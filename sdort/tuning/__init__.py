"""What tuning found, kept: one bundle per machine, model, shapes and options, found again by a later run."""
