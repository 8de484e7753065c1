"""A small transformer from a config, with LoRA adapters."""

import math

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 16


def cosine_annealing(current_round, total_rounds, lrate_max, lrate_min):
    angle = math.pi * current_round / total_rounds
    return lrate_min + 0.5 * (lrate_max - lrate_min) * (1 + math.cos(angle))


def get_model(rank):
    # A checkpoint would be the same for all; these weights stand for one.
    with torch.random.fork_rng():
        torch.manual_seed(1)
        base = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=16,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=32,
            )
        )
        peft_config = LoraConfig(
            r=rank,
            lora_alpha=4 * rank,
            lora_dropout=0.0,
            target_modules=["q_proj", "v_proj", "up_proj", "down_proj"],
            task_type="CAUSAL_LM",
        )
        return get_peft_model(base, peft_config)
