// In place of ucx_carrier.cc where Percheron is built without UCX.

#include "data/transport/ucx_carrier.h"

namespace percheron {

Result<std::unique_ptr<UcxCarrier>> UcxCarrier::open(const std::string& devices) {
  return failed_precondition("bulk by UCX over " + devices +
                             " was asked for, and this Percheron was built without UCX: configure "
                             "it with -DPERCHERON_UCX=ON");
}

bool UcxCarrier::is_built() { return false; }

}  // namespace percheron
