"""The Python side of the program `terrace`. Importing it does nothing, and needs no package."""
