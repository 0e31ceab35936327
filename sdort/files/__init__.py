"""Files: opened as a stranger may have made them, hashed, cached, and written whole or not at all."""
