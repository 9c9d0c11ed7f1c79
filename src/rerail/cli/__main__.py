"""`python -m rerail.cli` is `rerail`."""

from rerail.cli import main

main()
