import torch


def save(path, model, step):
    torch.save({"model": model.state_dict(), "step": step}, path)


def restore(path, model):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    return saved["step"]
