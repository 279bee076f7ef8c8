WORD = "the script's own runner"
