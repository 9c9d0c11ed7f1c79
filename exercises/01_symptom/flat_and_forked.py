"""
Two runs are in trouble, and everybody has a different remedy.

This is an answer sheet: fill in ANSWER. Nothing of it is run.

FLAT. The training loss of a small regression stands at the variance of the targets from the first
step to the last. There are five suspects: predictions and targets of different shapes are
subtracted (broadcast); the loss is cut off from the weights (cut); the optimizer holds the
parameters of another model (forgotten); the learning rate is far too low (slow); all hidden units
are dead (dead).

FORKED. The training loss of a classifier falls, its validation loss rises. Again five suspects: the
training rows are learned by heart (overfit); the validation file lists the two classes in the other
order (labels); the validation rows are not scaled (scale); validation runs in training mode, batch
by batch, over rows sorted by class (mode); what the measurements mean has changed since (drift).

Task: choose the first three experiments for either run. Each must change or measure one thing. When
all three are done, what they showed must tell the five suspects of that run apart, every one from
every other. The two runs need different experiments: no name may stand in both lists.

Experiments for either run
  by_heart    can it learn 8 fixed rows by heart?
  more_rows   many times as many training rows
  lower       a tenth of the learning rate
  longer      more epochs
  luckiest    three seeds, keep the best one
  everything  more rows, another optimizer and a lower rate
For the flat run
  shapes      compare the shapes of residual and prediction
  gradients   after one backward: missing, zero in places, or there?
  movement    which tensors does one step move, and how far?
  units       hidden units that are 0 on every row
  guesses     do the predictions vary over the rows?
  higher      ten thousand times the learning rate
  wider       eight times as many hidden units
  adam        Adam in place of SGD, the rate kept
For the forked run
  crossed     score the training rows as validation is scored
  before      validation loss before the first step, beside the training loss
  chance      validation accuracy: below, near, or above 50 %
  twice       score validation twice in a row
  resplit     draw the validation rows from the period of the training rows
  shuffled    shuffle the validation rows first
  dropout     half of the hidden units dropped
  smaller     two hidden units
  remedies    dropout, fewer units and a lower rate
  peek        look at the test score

Every outcome was recorded from real runs, one for each experiment under each suspect.
Graded: ANSWER, in exercises/01_symptom/flat_and_forked.py
"""

ANSWER = {
    "flat": ["", "", ""],
    "forked": ["", "", ""],
}
