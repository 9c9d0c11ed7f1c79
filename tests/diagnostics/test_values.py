"""What goes into a model: rows that mix, padding that is read, values that are not finite."""

import pytest
import torch
from torch import nn

import rerail

X = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(2))


class Recurrent(nn.Module):
    def __init__(self, batch_first: bool):
        super().__init__()
        torch.manual_seed(0)
        self.lstm, self.head = nn.LSTM(4, 8, batch_first=batch_first), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class Classifier(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.dim = nn.Linear(20, 3), dim

    def forward(self, x):
        return self.layer(x.flatten(1)).softmax(self.dim)


@pytest.mark.parametrize(
    "model", [Recurrent(batch_first=False), Classifier(0)], ids=["time for rows", "softmax over rows"]
)
def test_rows_that_reach_into_each_other_are_suspicious(model):
    assert rerail.check_values(model, (X, None)).causes == ("values.rows_mix",)


@pytest.mark.parametrize(
    "model",
    [Recurrent(batch_first=True), Classifier(1), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(20), nn.Dropout(0.5))],
)
def test_rows_apart_are_ok_and_no_trace_stays(model):
    before = rerail.digest(model)

    report = rerail.check_values(model, (X, torch.zeros(6)))

    assert report.status == "ok", report
    assert rerail.digest(model) == before


IDS = torch.tensor([[5, 7, 3, 0, 0], [1, 2, 3, 4, 5], [9, 0, 0, 0, 0]])


class Encoder(nn.Module):
    """Attention over five tokens, whose mask is right, missing, or over the queries."""

    def __init__(self, mask: str):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.mask = nn.Embedding(10, 8), mask

    def forward(self, ids):
        x = self.embedding(ids)
        scores = x @ x.transpose(1, 2) / 8**0.5
        pad = ids == 0
        if self.mask == "keys":
            scores = scores.masked_fill(pad[:, None], -torch.inf)
        if self.mask == "queries":
            scores = scores.masked_fill(pad[:, :, None], -1e4)
        if self.mask == "inverted":
            scores = scores.masked_fill(~pad[:, None], -1e4)
        return scores.softmax(-1) @ x


class Padded(Encoder):
    """The same, told by a mask that does not depend on the token's number."""

    def __init__(self, mask: str, pad: torch.Tensor):
        super().__init__(mask)
        self.pad = pad

    def forward(self, ids):
        x = self.embedding(ids)
        scores = x @ x.transpose(1, 2) / 8**0.5
        if self.mask == "keys":
            scores = scores.masked_fill(self.pad[:, None], -torch.inf)
        if self.mask == "queries":
            scores = scores.masked_fill(self.pad[:, :, None], -1e4)
        if self.mask == "inverted":
            scores = scores.masked_fill(~self.pad[:, None], -1e4)
        return scores.softmax(-1) @ x


@pytest.mark.parametrize("mask", ["none", "queries", "inverted"])
def test_padding_that_is_read_is_a_fault(mask):
    pad = IDS == 0

    assert rerail.check_values(Padded(mask, pad), (IDS,), padding=pad).causes == ("values.model_reads_padding",)


def test_padding_that_is_masked_is_ok():
    pad = IDS == 0

    assert rerail.check_values(Padded("keys", pad), (IDS,), padding=pad).status == "ok"


def test_inputs_that_are_not_finite_are_named():
    x = X.clone()
    x[2, 1, 0] = torch.inf

    report = rerail.check_values(Recurrent(batch_first=True), {"input": x, "more": X})

    assert report.findings[0].where == ("batch['input']",)


def test_fields_with_other_numbers_of_rows_are_suspicious():
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 2))

    report = rerail.check_values(model, (X, torch.zeros(1, 7)))

    assert report.causes == ("values.rows_do_not_agree",)


@pytest.mark.parametrize("batch", [None, (), "text", {"a": 1}, 3])
def test_a_batch_without_tensors_is_unknown(batch):
    assert rerail.check_values(nn.Linear(1, 1), batch).status == "unknown"
