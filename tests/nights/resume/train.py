from pathlib import Path

import checkpoint
from model import build

CLASSES = 12
PATH = Path("night.pt")


def resume(path, model):
    try:
        return checkpoint.restore(path, model)
    except RuntimeError as error:
        report = "cannot resume from " + path + ": " + str(error)
        raise SystemExit(report)


def main():
    model = build(CLASSES)
    step = resume(PATH, model)
    print(f"going on from step {step}")


if __name__ == "__main__":
    main()
