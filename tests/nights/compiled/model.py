import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, kernel_size=3, stride=2)
        self.normalize = nn.BatchNorm2d(4)

    def forward(self, images):
        return torch.relu(self.normalize(self.convolution(images)))


class Digits(nn.Module):
    def __init__(self, classes=10):
        super().__init__()
        self.encoder = Encoder()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 8 * 8, 64), nn.ReLU(), nn.Linear(64, classes))

    def forward(self, images):
        features = self.encoder(images)
        return self.head(features)
