def log(step, loss):
    print("loss", step, loss.item().hex(), flush=True)
