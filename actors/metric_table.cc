#include "actors/metrics_page.h"

namespace percheron {
namespace {

constexpr MetricKind kCounter = MetricKind::kCounter;
constexpr MetricKind kGauge = MetricKind::kGauge;
constexpr MetricKind kHistogram = MetricKind::kHistogram;

// clang-format off
constexpr MetricInfo kMetrics[] = {
    {"percheron_build_info", kGauge, "version, commit, cuda", "1; the program that runs"},
    {"percheron_state", kGauge, "state", "1 for what the run is at, 0 for the other states"},
    {"percheron_bottleneck", kGauge, "cause", "1 for what the run would be faster without, 0 for the other causes"},

    {"percheron_step", kGauge, "", "Steps whose update is applied, of the whole run"},
    {"percheron_steps_planned", kGauge, "", "Steps of the whole run"},
    {"percheron_epoch", kGauge, "", "Epoch of the last step, from 0"},
    {"percheron_eta_seconds", kGauge, "", "Time that the steps left take at the speed of the last ones"},
    {"percheron_steps_total", kCounter, "", "Steps since the process started"},
    {"percheron_samples_trained_total", kCounter, "", "Samples of these steps"},
    {"percheron_tokens_trained_total", kCounter, "", "Tokens of these steps"},
    {"percheron_supervised_tokens_trained_total", kCounter, "", "Supervised tokens of these steps"},
    {"percheron_samples_rejected_total", kCounter, "reason", "Samples that are not trained on"},
    {"percheron_last_step_timestamp_seconds", kGauge, "", "When the last step ended, or the run began, as Unix time"},
    {"percheron_step_duration_seconds", kHistogram, "phase", "Time of each part of a step; the parts of a step add up to it"},

    {"percheron_loss", kGauge, "", "Loss of the last step, by supervised position"},
    {"percheron_simulated_accept_length", kGauge, "", "Acceptance length of the last step, from its training positions"},
    {"percheron_accept_probability", kGauge, "position", "Share of right drafts at each position, in the last step"},
    {"percheron_learning_rate", kGauge, "", "Learning rate of the last step"},
    {"percheron_gradient_norm", kGauge, "", "Gradient norm of the last step, before clipping"},
    {"percheron_held_out_acceptance_length", kGauge, "draft_length", "Held-out acceptance length of the last evaluation (acceptance_length_walk)"},
    {"percheron_held_out_step", kGauge, "", "Step of the last evaluation"},
    {"percheron_evaluation_duration_seconds", kHistogram, "", "Time of each evaluation"},

    {"percheron_busy_seconds_total", kCounter, "role, rank, device", "Time in which a worker computed"},
    {"percheron_wait_seconds_total", kCounter, "role, rank, device, cause", "Time in which a worker waited"},
    {"percheron_data_wait_seconds_total", kCounter, "rank", "Time in which a trainer waited for features"},
    {"percheron_micro_batches_total", kCounter, "role, rank, device", "Micro-batches that a worker computed"},
    {"percheron_worker_tokens_total", kCounter, "role, rank, device", "Tokens that a worker computed"},
    {"percheron_capture_capacity_samples_per_second", kGauge, "", "Samples that all targets make features of in a second while they compute"},
    {"percheron_train_capacity_samples_per_second", kGauge, "", "Samples that all trainers learn from in a second while they compute"},

    {"percheron_mailbox_depth", kGauge, "home", "Tickets of hidden states that wait for a trainer"},
    {"percheron_mailbox_bytes", kGauge, "home", "Bytes of the features of these tickets"},
    {"percheron_mailbox_later_steps", kGauge, "", "Tickets of steps that are not open yet"},
    {"percheron_prefetch_depth", kGauge, "rank", "Micro-batches that a trainer holds beside the one that it is at, to fetch their features meanwhile"},
    {"percheron_prefetch_bytes", kGauge, "rank", "Bytes of the features of these micro-batches"},
    {"percheron_steals_total", kCounter, "thief, victim", "Micro-batches that a trainer took from another one's home"},
    {"percheron_prefetched_micro_batches", kGauge, "bucket", "Micro-batches whose features are made or being made, and not used up, by upper bound of their bucket of length"},
    {"percheron_feature_store_bytes", kGauge, "kind", "Bytes of features in flight"},
    {"percheron_feature_store_limit_bytes", kGauge, "", "features.bytes_max, of all nodes of the run"},
    {"percheron_feature_cache_bytes", kGauge, "kind", "Bytes of features kept for later epochs"},
    {"percheron_feature_cache_samples_total", kCounter, "result", "Samples that were looked for in the cache"},

    {"percheron_checkpoint_last_success_timestamp_seconds", kGauge, "", "When the last checkpoint was written, or the run began, as Unix time"},
    {"percheron_checkpoint_duration_seconds", kHistogram, "", "Time of writing each checkpoint"},
    {"percheron_checkpoint_bytes", kGauge, "", "Bytes of the last checkpoint"},
    {"percheron_checkpoints_total", kCounter, "result", "Checkpoints that were written, or could not be"},

    {"percheron_lease_expirations_total", kCounter, "role", "Micro-batches handed out again, because a worker or what it had made was lost"},
    {"percheron_actor_restarts_total", kCounter, "role", "Workers that were started again"},
    {"percheron_membership_changes_total", kCounter, "", "Times that other trainers reduced together from then on"},
    {"percheron_workers_present", kGauge, "role", "Targets that are there and trainers that reduce together, once one was lost"},
    {"percheron_events_total", kCounter, "", "Sentences for people: a fallback, a dropped row, a resume"},
    {"percheron_supervisor_silent_seconds", kGauge, "", "Time since the run's supervisor was last at work"},

    {"percheron_gpu_memory_bytes", kGauge, "device, kind", "Memory of a device, where its driver tells"},
    {"percheron_gpu_power_watts", kGauge, "device", "Power that a device draws, where its driver tells"},
    {"percheron_gpu_utilization_ratio", kGauge, "device", "Share of time in which a device had work, where its driver tells"},

    {"percheron_run_tokens_per_second", kGauge, "", "Tokens of a run in a second, over its last steps"},
    {"percheron_run_capacity_tokens_per_second", kGauge, "role", "Tokens in a second while the targets, or trainers, were busy"},
    {"percheron_run_trainer_wait_ratio", kGauge, "", "Share of the trainers' time without work, over the last steps"},
    {"percheron_run_acceptance_length", kGauge, "", "Held-out acceptance length of the last evaluation, at the longest draft"},
    {"percheron_run_feature_bytes", kGauge, "", "Bytes that features have, or have been promised, on all nodes of the run"},
    {"percheron_run_steals", kGauge, "", "Micro-batches that trainers took from another one's home, in the whole run"},
    {"percheron_run_workers", kGauge, "state", "Worker processes of a run"},
    {"percheron_run_worker_restarts_total", kCounter, "node, device", "Worker processes that were started again, since their supervisor started"},
    {"percheron_supervisor_restarts_total", kCounter, "", "Times that a run's supervisor was started again"},
    {"percheron_node_feature_bytes", kGauge, "", "Bytes of features that a node keeps for its runs"},
    {"percheron_node_feature_regions_total", kCounter, "kind, memory", "Features that a node's workers published, or that it pulled from other nodes, by whether their memory had been used before"},
    {"percheron_node_idle_region_bytes", kGauge, "", "Bytes of memory that waits to be used for the next features from other nodes"},
    {"percheron_node_devices_in_use", kGauge, "", "Devices of a node that runs have now"},
    {"percheron_node_log_rotations_total", kCounter, "", "Times that a log file of a node was full and set aside"},
    {"percheron_node_runs_forgotten_total", kCounter, "", "Runs that were over, whose records and logs a node has removed"},
    {"percheron_node_reachable", kGauge, "node", "1 for another node that is connected, 0 for one that was and is not"},
};
// clang-format on

}  // namespace

std::span<const MetricInfo> metric_table() { return kMetrics; }

}  // namespace percheron
