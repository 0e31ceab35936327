"""Files of images: the texts inside of them, read and written."""
