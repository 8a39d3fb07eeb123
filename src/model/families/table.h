// The table of families: "model_type", the class in "architectures", the function that describes
// such a model. To add a family, add its row here and its file beside this one. Transformers 5 writes
// another class than was published for some: those have two rows.
#pragma once

// clang-format off
#define BATCHLLM_FAMILIES(family)                                                                  \
    family("afmoe", "AfmoeForCausalLM", describe_afmoe)                                            \
    family("apertus", "ApertusForCausalLM", describe_apertus)                                      \
    family("arcee", "ArceeForCausalLM", describe_arcee)                                            \
    family("bamba", "BambaForCausalLM", describe_bamba)                                            \
    family("cohere", "CohereForCausalLM", describe_cohere)                                         \
    family("cohere2", "Cohere2ForCausalLM", describe_cohere2)                                      \
    family("cwm", "CwmForCausalLM", describe_cwm)                                                  \
    family("deepseek_v2", "DeepseekV2ForCausalLM", describe_deepseek_v2)                           \
    family("deepseek_v3", "DeepseekV3ForCausalLM", describe_deepseek_v3)                           \
    family("dots1", "Dots1ForCausalLM", describe_dots1)                                            \
    family("ernie4_5", "Ernie4_5ForCausalLM", describe_ernie4_5)                                   \
    family("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", describe_ernie4_5_moe)                       \
    family("exaone", "ExaoneForCausalLM", describe_exaone)                                         \
    family("exaone", "LlamaForCausalLM", describe_exaone)                                          \
    family("exaone4", "Exaone4ForCausalLM", describe_exaone4)                                      \
    family("exaone_moe", "ExaoneMoeForCausalLM", describe_exaone_moe)                              \
    family("falcon", "FalconForCausalLM", describe_falcon)                                         \
    family("falcon_h1", "FalconH1ForCausalLM", describe_falcon_h1)                                 \
    family("flex_olmo", "FlexOlmoForCausalLM", describe_flex_olmo)                                 \
    family("gemma", "GemmaForCausalLM", describe_gemma1)                                           \
    family("gemma2", "Gemma2ForCausalLM", describe_gemma2)                                         \
    family("gemma3", "Gemma3ForConditionalGeneration", describe_gemma3_vision)                     \
    family("gemma3_text", "Gemma3ForCausalLM", describe_gemma3)                                    \
    family("gemma4", "Gemma4ForConditionalGeneration", describe_gemma4_vision)                     \
    family("gemma4_text", "Gemma4ForCausalLM", describe_gemma4)                                    \
    family("gemma4_unified", "Gemma4UnifiedForConditionalGeneration", describe_gemma4_unified_vision)\
    family("gemma4_unified_text", "Gemma4UnifiedForCausalLM", describe_gemma4_unified)             \
    family("glm", "GlmForCausalLM", describe_glm)                                                  \
    family("glm4", "Glm4ForCausalLM", describe_glm4)                                               \
    family("glm4_moe", "Glm4MoeForCausalLM", describe_glm4_moe)                                    \
    family("glm4_moe_lite", "Glm4MoeLiteForCausalLM", describe_glm4_moe_lite)                      \
    family("gpt_oss", "GptOssForCausalLM", describe_gpt_oss)                                       \
    family("granite", "GraniteForCausalLM", describe_granite)                                      \
    family("granitemoe", "GraniteMoeForCausalLM", describe_granite_moe)                            \
    family("granitemoehybrid", "GraniteMoeHybridForCausalLM", describe_granite_hybrid)             \
    family("granitemoeshared", "GraniteMoeSharedForCausalLM", describe_granite_moe_shared)         \
    family("helium", "HeliumForCausalLM", describe_helium)                                         \
    family("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", describe_hunyuan_dense)                \
    family("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", describe_hunyuan_moe)                      \
    family("hy_v3", "HYV3ForCausalLM", describe_hy_v3)                                             \
    family("hyperclovax", "HyperCLOVAXForCausalLM", describe_hyperclovax)                          \
    family("internlm3", "InternLM3ForCausalLM", describe_internlm3)                                \
    family("internlm3", "LlamaForCausalLM", describe_internlm3)                                    \
    family("iquestcoder", "IQuestCoderForCausalLM", describe_iquestcoder)                          \
    family("iquestcoder", "LlamaForCausalLM", describe_iquestcoder)                                \
    family("jais2", "Jais2ForCausalLM", describe_jais2)                                            \
    family("kimi_k2", "DeepseekV3ForCausalLM", describe_deepseek_v3)                               \
    family("kimi_linear", "KimiLinearForCausalLM", describe_kimi_linear)                           \
    family("lfm2", "Lfm2ForCausalLM", describe_lfm2)                                               \
    family("lfm2_moe", "Lfm2MoeForCausalLM", describe_lfm2_moe)                                    \
    family("lfm2_vl", "Lfm2VlForConditionalGeneration", describe_lfm2_vl)                          \
    family("llama", "LlamaForCausalLM", describe_llama)                                            \
    family("llama4", "Llama4ForConditionalGeneration", describe_llama4_vision)                     \
    family("llama4_text", "Llama4ForCausalLM", describe_llama4)                                    \
    family("mellum", "MellumForCausalLM", describe_mellum)                                         \
    family("mimo", "MiMoForCausalLM", describe_mimo)                                               \
    family("minicpm3", "MiniCPM3ForCausalLM", describe_minicpm3)                                   \
    family("minimax_m2", "MiniMaxM2ForCausalLM", describe_minimax_m2)                              \
    family("ministral", "MinistralForCausalLM", describe_mistral)                                  \
    family("ministral3", "Ministral3ForCausalLM", describe_ministral3)                             \
    family("mistral", "MistralForCausalLM", describe_mistral)                                      \
    family("mistral3", "Mistral3ForConditionalGeneration", describe_mistral3)                      \
    family("mistral4", "Mistral4ForCausalLM", describe_mistral4)                                   \
    family("mixtral", "MixtralForCausalLM", describe_mixtral)                                      \
    family("nemotron", "NemotronForCausalLM", describe_nemotron)                                   \
    family("nemotron_h", "NemotronHForCausalLM", describe_nemotron_h)                              \
    family("olmo", "OlmoForCausalLM", describe_olmo)                                               \
    family("olmo2", "Olmo2ForCausalLM", describe_olmo2)                                            \
    family("olmo3", "Olmo3ForCausalLM", describe_olmo3)                                            \
    family("olmoe", "OlmoeForCausalLM", describe_olmoe)                                            \
    family("PanguEmbedded", "PanguEmbeddedForCausalLM", describe_pangu)                            \
    family("phi", "PhiForCausalLM", describe_phi)                                                  \
    family("phi3", "Phi3ForCausalLM", describe_phi3)                                               \
    family("phimoe", "PhimoeForCausalLM", describe_phimoe)                                         \
    family("qwen2", "Qwen2ForCausalLM", describe_qwen2)                                            \
    family("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", describe_qwen2_5_vl)                \
    family("qwen2_moe", "Qwen2MoeForCausalLM", describe_qwen2_moe)                                 \
    family("qwen2_vl", "Qwen2VLForConditionalGeneration", describe_qwen2_vl)                       \
    family("qwen3", "Qwen3ForCausalLM", describe_qwen3)                                            \
    family("qwen3_5", "Qwen3_5ForConditionalGeneration", describe_qwen3_5_vision)                  \
    family("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", describe_qwen3_5_moe_vision)       \
    family("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", describe_qwen3_5_moe)                      \
    family("qwen3_5_text", "Qwen3_5ForCausalLM", describe_qwen3_5)                                 \
    family("qwen3_moe", "Qwen3MoeForCausalLM", describe_qwen3_moe)                                 \
    family("qwen3_next", "Qwen3NextForCausalLM", describe_qwen3_next)                              \
    family("qwen3_vl", "Qwen3VLForConditionalGeneration", describe_qwen3_vl)                       \
    family("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", describe_qwen3_vl_moe)            \
    family("sarvam_moe", "SarvamMoEForCausalLM", describe_sarvam_moe)                              \
    family("sarvam_moe", "Glm4MoeForCausalLM", describe_sarvam_moe)                                \
    family("seed_oss", "SeedOssForCausalLM", describe_seed_oss)                                    \
    family("smollm3", "SmolLM3ForCausalLM", describe_smollm3)                                      \
    family("solar_open", "SolarOpenForCausalLM", describe_solar_open)                              \
    family("stablelm", "StableLmForCausalLM", describe_stablelm)                                   \
    family("starcoder2", "Starcoder2ForCausalLM", describe_starcoder2)                             \
    family("vaultgemma", "VaultGemmaForCausalLM", describe_vaultgemma)                             \
    family("youtu", "YoutuForCausalLM", describe_youtu)                                            \
    family("youtu_llm", "YoutuForCausalLM", describe_youtu)
// clang-format on
