"""The configuration of the small model, and a still smaller one that the checks run on a CPU."""

# Special tokens keep the spelling of the release; programs find their ids through config and
# tokenizer.
SPECIALS = [
    '<｜begin▁of▁sentence｜>',
    '<｜end▁of▁sentence｜>',
    '<｜▁pad▁｜>',
    '<｜System｜>',
    '<｜User｜>',
    '<｜Assistant｜>',
    '<think>',
    '</think>',
    '｜DSML｜',
    '<｜latest_reminder｜>',
    '<｜action｜>',
    '<｜query｜>',
    '<｜authority｜>',
    '<｜domain｜>',
    '<｜title｜>',
    '<｜read_url｜>',
    '<｜noise｜>',
    '<｜deepseek_image｜>',
]
BOS, EOS, PAD, SYSTEM, USER, ASSISTANT, THINK, END_THINK = range(8)
NOISE, IMAGE = SPECIALS.index('<｜noise｜>'), SPECIALS.index('<｜deepseek_image｜>')

TINY_V41 = dict(
    model_type='deepseek_v41_text',
    vocab_size=4096,
    hidden_size=256,
    num_hidden_layers=8,
    num_nextn_predict_layers=3,
    num_attention_heads=4,
    num_key_value_heads=1,
    head_dim=128,
    qk_rope_head_dim=32,
    q_lora_rank=128,
    o_groups=2,
    o_lora_rank=128,
    sliding_window=64,
    max_position_embeddings=4096,
    rope_theta=10000,
    compress_rope_theta=160000,
    rope_scaling=dict(
        type='yarn', factor=4, beta_fast=32, beta_slow=1, original_max_position_embeddings=1024
    ),
    rms_norm_eps=1e-20,
    compress_ratios=[0, 0, 2, 2, 1, 1, 1, 1, 0, 0, 0],
    kv_source_layer_ids=[2, 4],
    index_source_layer_ids=[2, 4, 6],
    candidate_source_layer_id=4,
    candidate_topk_blocks=16,
    candidate_block_size=8,
    index_n_heads=8,
    index_head_dim=64,
    index_topk=64,
    n_routed_experts=8,
    n_shared_experts=1,
    num_experts_per_tok=2,
    moe_intermediate_size=192,
    routed_scaling_factor=1.5,
    scoring_func='sqrtsoftplus',
    topk_method='noaux_tc',
    norm_topk_prob=True,
    swiglu_limit=10.0,
    hidden_act='silu',
    hc_mult=4,
    hc_sinkhorn_iters=4,
    hc_eps=1e-6,
    engram_layer_ids=[1, 3],
    engram_num_embeddings=None,
    engram_max_ngram_size=4,
    engram_vocab_size=1000,
    engram_n_heads=4,
    engram_head_dim=32,
    engram_pad_token_id=PAD,
    engram_compressed_vocab_size=None,
    dspark_block_size=5,
    dspark_noise_token_id=NOISE,
    dspark_target_layer_ids=[5, 6, 7],
    dspark_markov_rank=64,
    dspark_n_routed_experts=4,
    dspark_num_experts_per_tok=2,
)

# Every selection binds within 64 tokens here: window 8, 6 entries of a pool of 10.
CHECK = dict(
    TINY_V41,
    vocab_size=320,
    hidden_size=64,
    head_dim=64,
    qk_rope_head_dim=16,
    q_lora_rank=32,
    o_lora_rank=32,
    sliding_window=8,
    rope_scaling=dict(
        type='yarn', factor=4, beta_fast=32, beta_slow=1, original_max_position_embeddings=32
    ),
    candidate_topk_blocks=5,
    candidate_block_size=2,
    index_head_dim=32,
    index_topk=6,
    moe_intermediate_size=64,
    swiglu_limit=2.5,
    hc_eps=1e-3,
    engram_vocab_size=64,
    engram_n_heads=2,
    dspark_markov_rank=16,
)


class Config:
    """Attribute view of a text_config."""

    def __init__(self, values):
        self.values = dict(values)
        self.__dict__.update(values)
        self.layers, self.drafts = values['num_hidden_layers'], values['num_nextn_predict_layers']
        self.ratio = (list(values['compress_ratios']) + [0] * 64)[: self.layers]

    def owner(self, layer):
        return max(i for i in self.kv_source_layer_ids if i <= layer)


def checkpoint_config(text):
    """The nested config.json of the release around a text_config."""
    return dict(
        architectures=['DeepseekV41ForCausalLM'],
        model_type='deepseek_v41',
        image_token_id=IMAGE,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=PAD,
        tie_word_embeddings=False,
        torch_dtype='bfloat16',
        text_config=text,
        quantization_config=dict(
            quant_method='fp8',
            activation_scheme='dynamic',
            weight_block_size=[32, 32],
            scale_fmt='ue8m0',
            expert_dtype='fp4',
        ),
    )
