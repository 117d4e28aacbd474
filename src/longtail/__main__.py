"""`python -m longtail`: the command line."""

from longtail.start import main

main()
