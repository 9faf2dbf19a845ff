"""What Python adds to the program `terrace`. Importing does nothing else, and needs no package."""
