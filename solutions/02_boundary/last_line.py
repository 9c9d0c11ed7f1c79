"""
Four nights have failed, and the last line of each log says next to nothing.

This is an answer sheet: fill in ANSWER. The file is read, nothing of it is run.

Ada's runs failed four nights in a row. What they wrote is in exercises/02_boundary/data/:
monday.txt (226 lines), tuesday.txt (100), wednesday.txt (45) and thursday.txt (24). Her own code
is what lies in /home/ada/scans; all other files are of Python and of installed packages.

Task: for each night, say
- message: the message of the failure that all the others follow from, or enough of it to find it.
  An exception that the code expects and goes on from, as from a miss in a cache, is no failure.
  What was raised to report a failure, or while it was being reported, is not the failure.
- line: the deepest line of her own code on the way to that failure, as "file.py:12". Leave it empty
  if nothing of hers has to change.
- sizes: two sizes in that message that do not fit each other, as "[8, 4] and [8, 5]"; where it has
  more such pairs, any one of them. Leave it empty if the message is not about sizes.
- kind: "training" if her code, its settings or its data have to change for the run to go on;
  "dependency" if these are right, and what is installed on the machine has to change.
Any way of writing it is right as long as it names one message, one line, one pair.

Graded: ANSWER, in exercises/02_boundary/last_line.py
"""

ANSWER = {
    "monday": {
        "message": "a and b must have same reduction dim, but got [32, 196] X [256, 64].",
        "line": "model.py:23", "sizes": "[32, 196] and [256, 64]", "kind": "training",
    },
    "tuesday": {
        "message": "No working C++ compiler found in torch._inductor.config.cpp.cxx",
        "line": "", "sizes": "", "kind": "dependency",
    },
    "wednesday": {
        "message": "shape '[3, 16, 16]' is invalid for input of size 256",
        "line": "data.py:24", "sizes": "[3, 16, 16] and 256", "kind": "training",
    },
    "thursday": {
        "message": "size mismatch for 2.weight",
        "line": "checkpoint.py:10", "sizes": "[10, 64] and [12, 64]", "kind": "training",
    },
}
