#include "base/half.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep {
namespace {

bool is_nan16(std::uint32_t bits, std::uint32_t exponent_mask, std::uint32_t fraction_mask) {
  return (bits & exponent_mask) == exponent_mask && (bits & fraction_mask) != 0;
}

TEST(Half, EveryValueSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if (is_nan16(bits, 0x7C00, 0x3FF)) {
      EXPECT_TRUE(std::isnan(f32_from_f16(half)));
      EXPECT_TRUE(is_nan16(f16_from_f32(f32_from_f16(half)), 0x7C00, 0x3FF));
    } else {
      EXPECT_EQ(f16_from_f32(f32_from_f16(half)), half);
    }
    if (is_nan16(bits, 0x7F80, 0x7F)) {
      EXPECT_TRUE(is_nan16(bf16_from_f32(f32_from_bf16(half)), 0x7F80, 0x7F));
    } else {
      EXPECT_EQ(bf16_from_f32(f32_from_bf16(half)), half);
    }
  }
}

// Between two neighbours the nearer one is taken; in the middle, the even one.
TEST(Half, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits < 0x7BFF; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    const float middle = (f32_from_f16(low) + f32_from_f16(high)) / 2;
    EXPECT_EQ(f16_from_f32(middle), bits % 2 == 0 ? low : high);
    EXPECT_EQ(f16_from_f32(std::nextafter(middle, 0.0F)), low);
    EXPECT_EQ(f16_from_f32(std::nextafter(middle, 1e9F)), high);
    EXPECT_EQ(f16_from_f32(-middle), (bits % 2 == 0 ? low : high) | 0x8000);
  }
  EXPECT_EQ(f16_from_f32(65519.996F), 0x7BFF);
  EXPECT_EQ(f16_from_f32(65520.0F), 0x7C00);
  EXPECT_EQ(bf16_from_f32(std::numeric_limits<float>::infinity()), 0x7F80);
}

}  // namespace
}  // namespace lockstep
