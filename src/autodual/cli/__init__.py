"""The command line: one thin file per command. Everything that a command does is a function of the library."""
