"""The functions of the package, one for each command: forgiving arguments, typed results."""
