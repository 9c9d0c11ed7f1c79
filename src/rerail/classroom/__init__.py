"""Many submissions: an nbgrader course of the exercises."""
