//! Models of the hub that are not loaded, which their names tell.

use super::*;

/// What is said of the policy's model.
fn said(model: &str) -> Option<String> {
    let notes = converted(Framework::Openrlhf, &format!("--pretrain {model}")).notes;
    let about = |note: &&Note| note.message.contains("is not available: ppo-worker loads");
    let note = notes.iter().find(about)?;
    assert_eq!(
        (note.kind, note.subject.as_str()),
        (NoteKind::NotTranslated, "model.policy.hub.id")
    );
    Some(note.message.clone())
}

#[test]
fn a_model_of_another_family_is_told_of_by_its_name() {
    for (model, looks_like) in [
        ("EleutherAI/pythia-1b-deduped", "a GPT-NeoX model"),
        ("EleutherAI/gpt-neox-20b", "a GPT-NeoX model"),
        ("cleanrl/EleutherAI_pythia-1b-deduped__sft__tldr", "a GPT-NeoX model"),
        ("EleutherAI/gpt-neo-125m", "a GPT-Neo or GPT-J model"),
        ("gpt2", "a GPT-2 model"),
        ("openai-community/gpt2-xl", "a GPT-2 model"),
        ("lvwerra/gpt2-imdb", "a GPT-2 model"),
        ("openai/gpt-oss-20b", "a gpt-oss model"),
        ("facebook/opt-1.3b", "an OPT model"),
        ("google/gemma-2-2b-it", "a Gemma model"),
        ("Skywork/Skywork-Reward-Gemma-2-27B", "a Gemma model"),
        ("microsoft/phi-1_5", "a Phi model"),
        ("microsoft/Phi-3.5-mini-instruct", "a Phi model"),
        ("tiiuae/falcon-7b-instruct", "a Falcon model"),
        ("bigscience/bloomz-560m", "a BLOOM model"),
        ("mosaicml/mpt-7b", "an MPT model"),
        ("THUDM/chatglm3-6b", "a GLM model"),
        ("zai-org/GLM-4.5-Air", "a GLM model"),
        ("internlm/internlm2_5-7b-chat", "an InternLM model"),
        ("baichuan-inc/Baichuan2-7B-Chat", "a Baichuan model"),
        ("deepseek-ai/DeepSeek-V3-0324", "one of DeepSeek's mixtures of experts"),
        ("deepseek-ai/DeepSeek-R1-0528", "one of DeepSeek's mixtures of experts"),
        ("allenai/OLMo-2-1124-7B", "an OLMo model"),
        ("google/flan-t5-small", "a T5 model"),
        ("OpenAssistant/reward-model-deberta-v3-large-v2", "a BERT model"),
        ("XiaomiMiMo/MiMo-7B-RL", "a MiMo model"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "a model of pictures or sound"),
        (
            "meta-llama/Llama-3.2-11B-Vision-Instruct",
            "a model of pictures or sound",
        ),
        ("llava-hf/llava-v1.6-mistral-7b-hf", "a model of pictures or sound"),
        ("HuggingFaceTB/SmolVLM2-2.2B-Instruct", "a model of pictures or sound"),
        ("Qwen/Qwen3-30B-A3B", "a mixture of experts"),
        ("Qwen/Qwen1.5-MoE-A2.7B-Chat", "a mixture of experts"),
        ("mistralai/Mixtral-8x7B-v0.1", "a mixture of experts"),
        ("mistralai/Mamba-Codestral-7B-v0.1", "a Mamba model"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "a Llama 4 model"),
        ("HuggingFaceTB/SmolLM3-3B", "a SmolLM3 model"),
        ("Qwen/Qwen3.5-0.8B", "a model newer than Qwen3"),
        ("Qwen/Qwen-1_8B-Chat", "a model older than Qwen2"),
    ] {
        let whole = format!(
            "{model} looks like {looks_like}, which is not available: ppo-worker loads Llama, Mistral, Qwen2 and Qwen3"
        );
        assert_eq!(said(model), Some(whole));
    }
}

#[test]
fn a_model_that_is_loaded_or_that_its_name_tells_nothing_of_is_not_told_of() {
    for model in [
        "Qwen/Qwen2.5-7B-Instruct",
        "Qwen/Qwen2.5-Math-7B",
        "Qwen/Qwen1.5-1.8B-Chat",
        "Qwen/Qwen3-0.6B",
        "Qwen/Qwen3-4B-Instruct-2507",
        "Qwen/QwQ-32B",
        "meta-llama/Llama-3.1-8B",
        "meta-llama/Llama-2-7b-hf",
        "meta-llama/Meta-Llama-3-8B-Instruct",
        "mistralai/Mistral-7B-Instruct-v0.2",
        "mistralai/Mistral-Nemo-Instruct-2407",
        "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
        "HuggingFaceTB/SmolLM2-135M",
        "OpenRLHF/Llama-3-8b-sft-mixture",
        "sfairXC/FsfairX-LLaMA3-RM-v0.1",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
        "deepseek-ai/DeepSeek-R1-0528-Qwen3-8B",
        "deepseek-ai/deepseek-llm-7b-chat",
        "deepseek-ai/deepseek-coder-6.7b-instruct",
        "tiiuae/Falcon3-7B-Base",
        "internlm/OREAL-7B",
        "lmsys/vicuna-7b-v1.5",
        "cognitivecomputations/dolphin-2.9-llama3-8b",
        "01-ai/Yi-6B",
        "owner/my-own-model",
    ] {
        assert_eq!(said(model), None, "{model}");
    }
}

#[test]
fn a_folder_may_be_called_as_it_likes() {
    for folder in ["/models/gemma-2-2b-it", "./pythia-160m", "models/google/gemma-2-2b-it"] {
        assert_eq!(said(folder), None, "{folder}");
    }
}

#[test]
fn a_model_that_several_roles_have_is_told_of_once_and_others_each() {
    let subjects = |flags: &str| {
        let notes = converted(Framework::Trl, &format!("ppo.py --dataset_name /d.jsonl {flags}")).notes;
        let about = notes
            .into_iter()
            .filter(|note| note.message.contains("looks like a GPT-NeoX model"));
        about.map(|note| note.subject).collect::<Vec<_>>()
    };
    let same = "--sft_model_path EleutherAI/pythia-1b --reward_model_path EleutherAI/pythia-1b";
    assert_eq!(subjects(same), ["model.policy.hub.id"]);
    // TRL's critic starts from the reward model.
    let two = "--sft_model_path EleutherAI/pythia-1b --reward_model_path trl-lib/pythia-1b-deduped-tldr-rm";
    assert_eq!(
        subjects(two),
        ["model.policy.hub.id", "roles.reward.model.source.hub.id"]
    );
}
