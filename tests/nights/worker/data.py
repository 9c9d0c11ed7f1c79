import torch
from torch.utils.data import Dataset

SIDE = 16


class Scans(Dataset):
    def __init__(self, files):
        self.files = files
        self.cache = {}

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        try:
            return self.cache[index]
        except KeyError:
            self.cache[index] = self.read(index)
            return self.cache[index]

    def read(self, index):
        values = torch.frombuffer(bytearray(self.files[index]), dtype=torch.uint8)
        return values.reshape(3, SIDE, SIDE).float() / 255
