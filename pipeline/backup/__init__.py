"""A whole cosyd as one file, and back: `make` writes it while cosyd runs, `restore` looks at it and puts it
in the place of what is there, `moves` makes that one step for whoever pulls the plug. Imports no engine."""
