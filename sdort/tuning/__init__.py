"""The tuning cache: one bundle per machine, model, shapes and options, which later runs find again."""
