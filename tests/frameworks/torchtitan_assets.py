"""What torchtitan's debug model is trained with: `torchtitan_assets.py FOLDER` writes a configuration, a tokenizer and text."""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

CONFIGURATION = """\
[job]
dump_folder = "{folder}"

[metrics]
log_freq = 1
disable_color_printing = true

[model]
name = "llama3"
flavor = "debugmodel"
hf_assets_path = "{folder}/tokenizer"

[training]
dataset = "c4_test"
dataset_path = "{folder}/text"
local_batch_size = 2
seq_len = 32
steps = 6

[activation_checkpoint]
mode = "selective"

[debug]
seed = 0
"""


def main(folder: Path) -> None:
    sentences = [f"{at} bottles of beer on the wall, {at} bottles of beer." for at in range(200)]
    (folder / "tokenizer").mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokens = ["<|begin_of_text|>", "<|end_of_text|>"]
    tokenizer.train_from_iterator(sentences, trainers.BpeTrainer(vocab_size=300, special_tokens=tokens))
    tokenizer.save(str(folder / "tokenizer" / "tokenizer.json"))
    said = {"bos_token": tokens[0], "eos_token": tokens[1], "add_bos_token": True, "add_eos_token": True}
    (folder / "tokenizer" / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "text").mkdir()
    (folder / "text" / "text.json").write_text("\n".join(json.dumps({"text": text}) for text in sentences))
    (folder / "debug.toml").write_text(CONFIGURATION.format(folder=folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
