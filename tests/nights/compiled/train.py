import torch

from model import Digits
from trainer import Trainer


def batches(count=4, size=32):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.rand(size, 1, 16, 16, generator=generator), torch.randint(10, (size,), generator=generator)


def main():
    torch.manual_seed(0)
    trainer = Trainer(Digits())
    trainer.fit(list(batches()))


if __name__ == "__main__":
    main()
