"""transformers' Trainer: `trainer.py VERSION ACCUMULATION [lora]`, with FSDP (1) or FSDP2 (2)."""

import sys
import tempfile
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

version, accumulation = int(sys.argv[1]), int(sys.argv[2])


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and "loss" in logs:
            print("loss", state.global_step, float(logs["loss"]).hex(), flush=True)


def main():
    torch.manual_seed(0)
    shape = {"hidden_size": 24, "intermediate_size": 40, "num_attention_heads": 2, "num_hidden_layers": 3}
    config = LlamaConfig(**shape, vocab_size=51, attn_implementation="eager", tie_word_embeddings=False)
    model = LlamaForCausalLM(config)
    if sys.argv[3:] == ["lora"]:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=3, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    tokens = torch.randint(0, 51, (64, 9), generator=torch.Generator().manual_seed(1))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=6,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=accumulation,
            learning_rate=1e-2,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            fsdp=True,
            fsdp_config={
                "version": version,
                "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
                "sync_module_states": False,
            },
        )
        data = [{"input_ids": row, "labels": row} for row in tokens]
        Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Losses()]).train()
    time.sleep(0.3)  # gloo's thread may hold the last tensor a moment longer, and an exit meanwhile aborts


if __name__ == "__main__":
    main()
