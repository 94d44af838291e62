#pragma once

#include <span>
#include <string>

#include "tools/line_chart.h"

namespace percheron {

/// The charts below each other, each with its title and legend, as an SVG file that needs no style
/// sheet; readable in light and dark.
std::string svg_file(std::span<const LineChart> charts);

}  // namespace percheron
