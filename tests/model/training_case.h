#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/dflash.h"
#include "model/eagle3.h"
#include "tests/model/toy_model.h"

namespace percheron {

/// A document of a training case: token ids and where they are supervised.
struct TrainingDocument {
  std::vector<uint32_t> token_ids;
  std::vector<uint8_t> loss_mask;
};

/// `length` random tokens below `vocabulary`; supervised from `answer` on.
TrainingDocument random_document(uint64_t seed, int64_t length, int64_t answer, int64_t vocabulary);

/// Random captured states of packed documents, a pure function of (seed, sample id): a document's
/// states do not depend on its neighbours. Slots = states + 1, the last one being the last layer's
/// output.
Features random_features(uint64_t seed, const std::vector<TrainingDocument>& documents,
                         int64_t states, int64_t hidden, uint64_t first_sample = 0);

/// Random frozen matrices of a target.
struct TrainingTarget {
  std::vector<float> embedding, head, final_norm;  // [V, H], [V, H], [H]
  Tensor device_embedding, device_head, device_final_norm;
  TargetParts parts;

  TrainingTarget(TestDevice& device, uint64_t seed, int64_t vocabulary, int64_t hidden);
};

/// Sets features.top1 to the target's own choice at every row whose next token is supervised, else
/// -1.
void fill_top1(const TrainingTarget& target, Features& features);

/// Small shapes with an odd number of everything: 3 query heads on 1, head_dim 4, MLP 11.
DrafterConfig small_eagle3_config();
DrafterConfig small_dflash_config();

/// Every third token id from 1 on.
std::vector<int32_t> small_draft_ids(int64_t vocabulary);

/// Random values for all parameters, larger than a fresh drafter's so that every path matters; the
/// same for equal names.
void randomise(TestDevice& device, uint64_t seed, Drafter& drafter);

/// Gradients by parameter name; the drafter's are set to zero.
std::map<std::string, std::vector<float>> take_gradients(TestDevice& device, Drafter& drafter);

/// The largest absolute difference over all tensors, relative to the largest element of each.
double relative_difference(const std::map<std::string, std::vector<float>>& a,
                           const std::map<std::string, std::vector<float>>& b);

}  // namespace percheron
