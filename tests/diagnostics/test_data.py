"""The data: splits that share what they must not, and reads that are not what they seem."""

import time

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

import rerail

RANDOM = np.random.default_rng(0)
ROWS = RANDOM.normal(size=(100, 3))
LABELS = RANDOM.integers(0, 3, 100)
GROUPS = np.repeat(np.arange(20), 5)


def test_rows_apart_are_ok():
    report = rerail.split_audit((ROWS[:70], LABELS[:70]), (ROWS[70:85], LABELS[70:85]), (ROWS[85:], LABELS[85:]))

    assert report.status == "ok", report
    assert report.facts["test_rows_in_validation"] == 0


@pytest.mark.parametrize(
    "form", [lambda x: x, torch.as_tensor, lambda x: TensorDataset(torch.as_tensor(x)), lambda x: x.tolist()]
)
def test_validation_rows_among_the_training_rows_are_a_fault(form):
    report = rerail.split_audit(form(ROWS), form(ROWS[60:]))

    assert report.status == "fault"
    assert report.causes == ("data.rows_in_both_splits",)
    assert report.facts["validation_rows_in_train"] == 1


def test_removing_duplicates_inside_each_split_does_not_help():
    train, validation = np.unique(ROWS, axis=0), np.unique(ROWS[60:], axis=0)

    assert rerail.split_audit(train, validation).status == "fault"


def test_equal_rows_of_few_discrete_values_are_only_a_question():
    bits = RANDOM.integers(0, 2, (300, 4))

    assert rerail.split_audit(bits[:200], bits[200:]).status == "suspicious"


def test_groups_on_both_sides_are_a_fault_also_without_equal_rows():
    shuffled = RANDOM.permutation(100)
    train, validation = shuffled[:70], shuffled[70:]

    report = rerail.split_audit(ROWS[train], ROWS[validation], group=(GROUPS[train], GROUPS[validation]))

    assert report.causes == ("data.groups_in_both_splits",)
    assert rerail.split_audit(ROWS[:70], ROWS[70:], group=(GROUPS[:70], GROUPS[70:])).status == "ok"


def test_times_that_overlap_are_a_fault():
    moments = np.arange(100)
    shuffled = RANDOM.permutation(100)

    assert rerail.split_audit(
        ROWS[shuffled[:70]], ROWS[shuffled[70:]], time=(moments[shuffled[:70]], moments[shuffled[70:]])
    ).causes == ("data.time_overlaps",)
    assert rerail.split_audit(ROWS[:70], ROWS[70:], time=(moments[:70], moments[70:])).status == "ok"


def test_a_validation_slice_of_sorted_rows_is_named():
    labels = np.repeat([0, 1, 2], 40)
    rows = RANDOM.normal(size=(120, 3))
    mixed = RANDOM.permutation(120)

    assert rerail.split_audit(rows[:96], rows[96:], labels=(labels[:96], labels[96:])).causes == (
        "data.labels_differ_between_splits",
    )
    rows, labels = rows[mixed], labels[mixed]
    assert rerail.split_audit(rows[:96], rows[96:], labels=(labels[:96], labels[96:])).status == "ok"


def test_other_shares_of_a_label_are_suspicious_and_chance_is_not():
    many = RANDOM.normal(size=(4000, 2))
    rare = (np.arange(4000) % 100 == 0).astype(int)
    half = (np.arange(4000) % 2).astype(int)

    assert rerail.split_audit(many[:2000], many[2000:], labels=(rare[:2000], half[2000:])).causes == (
        "data.prevalence_differs",
    )
    drawn = RANDOM.integers(0, 2, 4000)
    assert rerail.split_audit(many[:2000], many[2000:], labels=(drawn[:2000], drawn[2000:])).status == "ok"


def test_regression_targets_are_not_taken_for_classes():
    assert rerail.split_audit(ROWS[:70], ROWS[70:], labels=(ROWS[:70, 0], ROWS[70:, 0])).status == "ok"


def test_missing_values_on_one_side_are_suspicious():
    broken = ROWS[70:].copy()
    broken[:10, 0] = np.nan

    assert rerail.split_audit(ROWS[:70], broken).causes == ("data.missing_values_differ",)


def test_near_rows_are_suspicious():
    near = ROWS[60:] + 1e-6

    report = rerail.split_audit(ROWS, near, near=1e-3)

    assert report.causes == ("data.near_rows_in_both_splits",)
    assert rerail.split_audit(ROWS[:50], ROWS[50:], near=1e-3).status == "ok"


class Noisy(Dataset):
    def __init__(self, rows, transform=None):
        self.rows, self.transform = rows, transform

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = torch.as_tensor(self.rows[index])
        return (self.transform(row) if self.transform else row), int(index) % 2


def noise(row):
    return row + torch.randn(row.shape)


def test_validation_that_shares_the_augmentation_of_training_is_named():
    both = Noisy(ROWS, noise)

    report = rerail.split_audit(Subset(both, range(70)), Subset(both, range(70, 100)), augmented=True)

    assert "data.evaluation_reads_are_random" in report.causes
    assert report.findings[0].evidence["shared_dataset"] is True


def test_switching_the_shared_transform_off_is_still_a_fault_where_training_is_augmented():
    both = Noisy(ROWS)

    report = rerail.split_audit(Subset(both, range(70)), Subset(both, range(70, 100)), augmented=True)

    assert report.causes == ("data.training_reads_are_fixed",)


def test_two_datasets_with_the_same_indices_are_ok():
    train, validation = Subset(Noisy(ROWS, noise), range(70)), Subset(Noisy(ROWS), range(70, 100))

    assert rerail.split_audit(train, validation, augmented=True).status == "ok"


def scaled(fit_on):
    def prepare(train, test):
        rows = fit_on(train, test)
        mean, std = rows.mean(0), rows.std(0)
        return (train - mean) / std, (test - mean) / std

    return prepare


def refit(train, test):
    return (train - train.mean(0)) / train.std(0), (test - test.mean(0)) / test.std(0)


@pytest.mark.parametrize("form", [lambda x: x, torch.as_tensor])
def test_a_scaler_fitted_on_all_rows_is_a_fault(form):
    both = (lambda a, b: np.concatenate([a, b])) if form(ROWS) is ROWS else (lambda a, b: torch.cat([a, b]))

    assert rerail.fit_leak_test(scaled(both), form(ROWS[:70]), form(ROWS[70:])).causes == ("data.fit_reads_test_rows",)
    assert rerail.fit_leak_test(refit, form(ROWS[:70]), form(ROWS[70:])).causes == ("data.test_rows_fit_themselves",)
    assert rerail.fit_leak_test(scaled(lambda a, b: a), form(ROWS[:70]), form(ROWS[70:])).status == "ok"
    assert rerail.fit_leak_test(lambda a, b: a, form(ROWS[:70]), form(ROWS[70:])).status == "ok"


def test_a_leak_test_that_is_random_is_unknown():
    assert rerail.fit_leak_test(lambda a, b: a + np.random.random(a.shape), ROWS[:70], ROWS[70:]).status == "unknown"


def test_features_selected_on_all_rows_are_a_fault():
    wide, goal = RANDOM.normal(size=(60, 200)), RANDOM.integers(0, 2, 60)

    def select(fit_on_all):
        def prepare(train, test):
            (x, y), (x_test, y_test) = train, test
            rows, labels = (np.concatenate([x, x_test]), np.concatenate([y, y_test])) if fit_on_all else (x, y)
            best = np.argsort(np.abs(rows[labels == 1].mean(0) - rows[labels == 0].mean(0)))[-5:]
            return x[:, best], x_test[:, best]

        return prepare

    train, test = (wide[:40], goal[:40]), (wide[40:], goal[40:])
    assert rerail.fit_leak_test(select(True), train, test).causes == ("data.fit_reads_test_rows",)
    assert rerail.fit_leak_test(select(False), train, test).status == "ok"


class Stream(IterableDataset):
    def __init__(self, shard):
        self.shard = shard

    def __iter__(self):
        info = get_worker_info()
        begin, step = (info.id, info.num_workers) if info is not None and self.shard else (0, 1)
        return iter(range(begin, 12, step))


def test_a_stream_that_every_worker_reads_whole_is_a_fault():
    report = rerail.reads_audit(DataLoader(Stream(shard=False), batch_size=4, num_workers=2), epochs=1)

    assert report.causes == ("data.items_repeated",)
    assert (report.facts["items"], report.facts["different"]) == (24, 12)
    assert rerail.reads_audit(DataLoader(Stream(shard=True), batch_size=4, num_workers=2), epochs=1).status == "ok"


def test_stopping_a_replicated_stream_early_is_still_a_fault():
    report = rerail.reads_audit(DataLoader(Stream(shard=False), batch_size=1, num_workers=2), epochs=1, max_batches=12)

    assert report.causes == ("data.items_repeated",)


def test_drawing_with_replacement_on_purpose_is_ok():
    sampler = WeightedRandomSampler([1.0] * 20, 40, replacement=True)

    assert rerail.reads_audit(DataLoader(TensorDataset(torch.arange(20)), sampler=sampler)).status == "ok"


class Reshuffled:
    """Shuffles all rows at every pass, then takes some: the split moves."""

    def __init__(self, first, last, seed=None):
        self.first, self.last, self.random = first, last, np.random.default_rng(seed)

    def __iter__(self):
        return iter(self.random.permutation(20)[self.first : self.last].reshape(-1, 2))


def test_a_split_that_moves_between_epochs_is_a_fault_with_a_seed_too():
    for seed in (None, 1):
        report = rerail.reads_audit(Reshuffled(0, 14, seed), Reshuffled(14, 20, seed), key=lambda ids: ids, epochs=5)
        assert "data.split_moves_between_epochs" in report.causes
    fixed = np.arange(20).reshape(-1, 2)
    assert rerail.reads_audit(fixed[:7], fixed[7:], key=lambda ids: ids, epochs=5).status == "ok"


def test_an_evaluation_that_drops_the_last_rows_is_named():
    data = TensorDataset(torch.arange(21))

    assert rerail.reads_audit(DataLoader(data, 4, drop_last=True), evaluation=True).causes == ("data.rows_never_read",)
    assert rerail.reads_audit(DataLoader(data, 4), evaluation=True).status == "ok"
    assert rerail.reads_audit(DataLoader(TensorDataset(torch.arange(3)), 4, drop_last=True)).status == "unknown"


def test_equal_rows_of_a_dataset_are_only_a_question():
    assert rerail.reads_audit(DataLoader(TensorDataset(torch.tensor([1.0, 1.0, 2.0])))).status == "suspicious"


class Stored(Dataset):
    def __init__(self, live):
        self.generator, self.live = np.random.default_rng(0), live

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor(self.generator.random()) if self.live else torch.rand(())


def test_a_generator_stored_in_the_dataset_repeats_every_epoch():
    assert (
        "data.same_randomness_every_epoch"
        in rerail.reads_audit(DataLoader(Stored(live=True), num_workers=2), augmented=True).causes
    )
    assert rerail.reads_audit(DataLoader(Stored(live=False), num_workers=2), augmented=True).status == "ok"


@pytest.mark.parametrize(
    ("train", "validation"),
    [
        (np.zeros((0, 2)), ROWS),
        ([], ROWS),
        (3, ROWS),
        (None, None),
        (np.float64(1), ROWS),
        (ROWS, "text"),
        (np.zeros((3, 0)), ROWS),
    ],
)
def test_splits_that_cannot_be_compared_are_unknown_or_answered(train, validation):
    report = rerail.split_audit(train, validation)

    assert report.status in ("unknown", "ok", "suspicious")
    assert "Traceback" not in str(report)


def test_labels_for_the_wrong_number_of_splits_are_unknown():
    assert rerail.split_audit(ROWS[:50], ROWS[50:], labels=(LABELS,)).status == "unknown"


def test_a_million_rows_take_seconds():
    many = RANDOM.normal(size=(500_000, 4)).astype(np.float32)

    begin = time.perf_counter()
    report = rerail.split_audit(many, many[:1000] + 1)

    assert report.status == "ok"
    assert time.perf_counter() - begin < 60  # 2 s on an idle core: no more than a guard against a loop of pairs
