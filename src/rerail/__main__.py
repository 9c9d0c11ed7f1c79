"""`python -m rerail` is `rerail`."""

from rerail.cli import main

main()
