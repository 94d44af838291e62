#pragma once

#include <cstddef>
#include <vector>

#include "tools/screen_line.h"
#include "tools/top_screen.h"

namespace percheron {

/// A line of headings and one for each worker, `room` of them at most: the last then counts those
/// that are left out. Columns that `width` has no room for are left out, the least important first.
void add_worker_table(std::vector<ScreenLine>& lines, const std::vector<TopWorker>& workers,
                      size_t width, size_t room);

}  // namespace percheron
