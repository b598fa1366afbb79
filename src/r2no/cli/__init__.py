"""The command line: parse, call the library, say what was written."""
