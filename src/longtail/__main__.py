"""`python -m longtail`: the command line."""

from longtail.cli import main

main()
