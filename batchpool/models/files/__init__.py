"""Files of a model's folder, read so that an error names the file and what is wrong with it."""
