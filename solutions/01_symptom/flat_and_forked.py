"""
One loss stands still, another parts from training, and everybody has a remedy.

This is an answer sheet: fill in ANSWER. The file is read, nothing of it is run.

FLAT. A small regression (one layer of ReLU units, SGD) ends with the training loss it began with.
  broadcast  predictions are [N, 1], targets [N], and their difference is [N, N]
  cut        the loss is a new tensor made from a plain number: nothing links it to the weights
  forgotten  the optimizer was built from another copy of the model
  slow       the learning rate is a hundred thousand times too low
  dead       every hidden unit is 0 on every row; only the bias of the output can still answer

FORKED. A classifier of two equally frequent classes: training loss falls, validation loss rises.
  overfit    there are 50 training rows, and they are learned by heart (the others have 1500);
             of other rows the model still tells most
  labels     the code that scores validation reads the two classes in the other order
  scale      the code that scores validation does not standardize its rows, which are far from 0
  mode       validation is scored in training mode (batch norm, dropout), one class at a time
  drift      validation rows are of a later time: columns alike, but the class hangs on other ones

Task: name the first three experiments for either run, and beside each what you expect: the five
suspects in groups, one group for each outcome, as in "cut slow | broadcast forgotten dead".
- Each changes or measures one thing, leaves the test rows alone, and does not come out alike under
  all five suspects.
- The three outcomes together tell each suspect from every other.
- What needs no training run, or only its first step ("look"), comes before what needs one ("run").
- The two runs need different experiments: no name stands in both lists.
Any three that keep to this are right; there are many. Every outcome was recorded in a real run.
The symptom "goes" where training loss falls (flat), or validation loss ends beside it (forked); a
remedy that softens it and leaves the most of it has not made it go: it "stays".

For either run
  gradients   look  how many tensors get a gradient that is not 0 in the first step: all, some, none
  movement    look  how many tensors does the first step change: all, some, none
  by_heart    run   train on 8 fixed rows only: training loss falls below half, or does not
  more_rows   run   2000 more training rows: the symptom goes, or stays
  lower       run   half the learning rate: goes, or stays
  longer      run   three times as many steps: goes, or stays
  luckiest    run   three other seeds, the best one is kept: goes, or stays
  everything  run   more rows, another optimizer and a lower rate together: goes, or stays
For the flat run
  shapes      look  prediction and target have equal shapes, or not
  recompute   look  the loss, computed anew row by row from predictions and targets: equal, or not
  graph       look  the loss knows the operation that made it (`grad_fn`), or not
  size        look  the first step's longest move of a tensor: above 0.0001, below it, or 0
  units       look  all hidden units are 0 on every row, or not all
  higher      run   a hundred thousand times the learning rate: goes, or stays
  momentum    run   momentum 0.9 in the same optimizer: goes, or stays
  rebuild     run   the optimizer built anew, from the model in use: goes, or stays
  reinit      run   the framework's own start values for all layers: goes, or stays
For the forked run, of the trained model where nothing else is said
  crossed     look  accuracy of training rows in validation's code: over 60 %, under 40, between
  chance      look  accuracy of validation rows: over 60 %, under 40, between
  before      look  validation loss of 20 untrained models, their mean: near log(2), or far above
  spread      look  means of the columns that the model receives, over all validation rows: as in
                    training, or far apart
  twice       look  validation scored twice in a row: equal, or not
  evalmode    look  `model.eval()` called before validation is scored: goes, or stays
  resplit     run   validation rows drawn from the time of the training rows: goes, or stays
  dropout     run   half of the hidden units dropped in training: goes, or stays
  peek        look  accuracy of the test rows: over 60 %, under 40, between

Graded: ANSWER, in exercises/01_symptom/flat_and_forked.py
"""

ANSWER = {
    "flat": [
        ("gradients", "broadcast forgotten slow | cut | dead"),
        ("shapes", "broadcast | cut forgotten slow dead"),
        ("size", "broadcast dead | slow | cut forgotten"),
    ],
    "forked": [
        ("crossed", "overfit drift | labels | scale mode"),
        ("chance", "overfit | labels | scale mode drift"),
        ("spread", "scale | overfit labels mode drift"),
    ],
}
