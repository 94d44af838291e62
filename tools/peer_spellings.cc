#include "tools/peer_spellings.h"

#include <array>
#include <utility>

namespace percheron {
namespace {

constexpr std::string_view kCapture =
    "drafter.capture, where j is the residual stream after target layer j (0 = embedding): "
    "speculators' and vLLM's "
    "numbers as they are, SpecForge's, SGLang's and z-lab's plus 1";

constexpr std::array<std::pair<std::string_view, std::string_view>, 60> kSpellings{{
    {"target_model_path", "target.path"},
    {"target_model_name_or_path", "target.path"},
    {"verifier_name_or_path", "target.path"},
    {"model_name_or_path", "target.path"},
    {"draft_model_config", "drafter.config"},
    {"draft_config", "drafter.config"},
    {"train_data_path", "data.train"},
    {"data_path", "data.train"},
    {"eval_data_path", "data.held_out"},
    {"max_length", "data.token_budget"},
    {"max_seq_length", "data.token_budget"},
    {"total_seq_len", "data.token_budget"},
    {"batch_size", "data.token_budget (tokens of a micro-batch) and train.micro_batches_per_step"},
    {"group_by_length", "data.order (bucketed)"},
    {"packing", "data.order (packed, the default)"},
    {"shuffle", "data.order (all but sorted shuffle)"},
    {"micro_batch_size", "data.token_budget (tokens of a micro-batch)"},
    {"accumulation_steps", "train.micro_batches_per_step"},
    {"draft_accumulation_steps", "train.micro_batches_per_step"},
    {"gradient_accumulation_steps", "train.micro_batches_per_step"},
    {"lr", "optimizer.learning_rate"},
    {"weight_decay", "optimizer.weight_decay"},
    {"adam_beta1", "optimizer.beta1"},
    {"adam_beta2", "optimizer.beta2"},
    {"max_grad_norm", "optimizer.clip_norm"},
    {"muon_lr", "optimizer.muon_learning_rate"},
    {"lr_scheduler_type", "schedule.kind"},
    {"scheduler_type", "schedule.kind"},
    {"warmup_ratio", "schedule.warmup_ratio"},
    {"warmup_steps", "schedule.warmup_steps"},
    {"num_epochs", "train.epochs"},
    {"num_train_epochs", "train.epochs"},
    {"max_steps", "train.steps"},
    {"max_num_steps", "train.steps"},
    {"ttt_length", "loss.ttt_steps"},
    {"ttt_steps", "loss.ttt_steps"},
    {"ttt_step_loss_decay", "loss.step_decay"},
    {"num_anchors", "loss.anchors_max"},
    {"max_anchors", "loss.anchors_max"},
    {"loss_decay_gamma", "loss.gamma"},
    {"num_draft_layers", "drafter.layers"},
    {"aux_hidden_state_layer_ids", kCapture},
    {"eagle_aux_hidden_state_layer_ids", kCapture},
    {"aux_hidden_states_layers", kCapture},
    {"target_layer_ids", kCapture},
    {"hidden_states_path", "features.from"},
    {"train_hidden_states_path", "features.from"},
    {"draft_checkpoint_path", "drafter.init_from"},
    {"from_pretrained", "drafter.init_from"},
    {"resume_from",
     "checkpoint.resume (goes on from output.directory) or, for weights alone, drafter.init_from"},
    {"load_path",
     "checkpoint.resume (goes on from output.directory) or, for weights alone, drafter.init_from"},
    {"save_interval", "checkpoint.every_steps"},
    {"save_steps", "checkpoint.every_steps"},
    {"max_checkpoints", "checkpoint.keep"},
    {"eval_interval", "evaluate.every_steps"},
    {"log_interval", "train.log_every_steps"},
    {"tensor_parallel_size", "placement.tensor_parallel"},
    {"tp_size", "placement.tensor_parallel"},
    {"output_dir", "output.directory"},
    {"save_path", "output.directory"},
}};

}  // namespace

std::string_view our_spelling_of(std::string_view key) {
  for (const auto& [theirs, ours] : kSpellings) {
    if (theirs == key) return ours;
  }
  return "";
}

}  // namespace percheron
