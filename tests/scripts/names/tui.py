def banner(text):
    return f"== {text} =="
