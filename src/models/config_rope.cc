// Rotary frequencies of every supported scaling, from the published definitions: linear position
// interpolation, Llama 3.1's frequency bands, YaRN (arXiv 2309.00071).
#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "models/model_config.h"

namespace deepinfer {
namespace {

// Llama 3.1: wavelengths longer than the low band are divided by `factor`, shorter than the high
// band kept, and blended between.
double Llama3(const RopeConfig& rope, double inv_freq) {
  const double wavelength = 2.0 * std::numbers::pi / inv_freq;
  const auto context = static_cast<double>(rope.original_context);
  if (wavelength > context / rope.low_freq_factor) return inv_freq / rope.factor;
  if (wavelength < context / rope.high_freq_factor) return inv_freq;
  const double blend = (context / wavelength - rope.low_freq_factor) /
                       (rope.high_freq_factor - rope.low_freq_factor);
  return (1.0 - blend) * inv_freq / rope.factor + blend * inv_freq;
}

struct YarnRange {
  double low = 0.0;
  double high = 0.0;
};

// Pairs below `low` turn often enough within the original context to be kept, pairs above `high`
// are interpolated.
YarnRange CorrectionRange(const RopeConfig& rope) {
  const auto pair_of = [&rope](double rotations) {
    return rope.dim *
           std::log(static_cast<double>(rope.original_context) /
                    (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(rope.theta));
  };
  YarnRange range{pair_of(rope.beta_fast), pair_of(rope.beta_slow)};
  if (rope.truncate) range = {std::floor(range.low), std::ceil(range.high)};
  const double last = rope.dim - 1;
  range = {std::clamp(range.low, 0.0, last), std::clamp(range.high, 0.0, last)};
  if (range.high <= range.low) range.high = range.low + 0.001;  // a step instead of a ramp
  return range;
}

}  // namespace

Status ComputeRope(RopeConfig* rope, std::span<const float> factors) {
  DI_CHECK(rope->dim > 0 && rope->dim % 2 == 0);
  const auto pairs = static_cast<size_t>(rope->dim / 2);
  if (!factors.empty() && factors.size() != pairs) {
    return Invalid(
        Format("rope_freqs.weight has {} elements; {} are needed for {} rotated "
               "elements",
               factors.size(), pairs, rope->dim));
  }
  const YarnRange range =
      rope->scaling == RopeScaling::kYarn ? CorrectionRange(*rope) : YarnRange{};
  rope->inv_freq.resize(pairs);
  for (size_t i = 0; i < pairs; ++i) {
    double inv_freq = std::pow(rope->theta, -2.0 * static_cast<double>(i) / rope->dim);
    if (!factors.empty()) {
      if (!(factors[i] > 0.0F) || !std::isfinite(factors[i])) {
        return Invalid(
            Format("rope_freqs.weight element {} is {}; it must be positive", i, factors[i]));
      }
      inv_freq /= static_cast<double>(factors[i]);
    }
    switch (rope->scaling) {
      case RopeScaling::kNone:
        break;
      case RopeScaling::kLinear:
        inv_freq /= rope->factor;
        break;
      case RopeScaling::kLlama3:
        inv_freq = Llama3(*rope, inv_freq);
        break;
      case RopeScaling::kYarn: {
        const double ramp =
            std::clamp((static_cast<double>(i) - range.low) / (range.high - range.low), 0.0, 1.0);
        inv_freq = inv_freq / rope->factor * ramp + inv_freq * (1.0 - ramp);
        break;
      }
    }
    rope->inv_freq[i] = static_cast<float>(inv_freq);
    if (!std::isfinite(rope->inv_freq[i])) {
      return Invalid(Format("rotary frequency {} is {}; theta {} or factor {} is out of range", i,
                            inv_freq, rope->theta, rope->factor));
    }
  }
  return {};
}

}  // namespace deepinfer
