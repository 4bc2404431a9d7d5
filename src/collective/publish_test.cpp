#include "collective/publish.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace lockstep::collective {
namespace {

TEST(Publish, CopiesEveryByteAndNoOther) {
  constexpr std::byte kUntouched{0xEE};
  constexpr std::size_t kRoom = 128;
  for (const std::size_t bytes : {0, 1, 63, 64, 2047, 2048, 2049, 4096, 65536, 65537}) {
    for (const std::size_t from : {0, 1, 8, 63}) {
      for (const std::size_t to : {0, 1, 8, 63}) {
        std::vector<std::byte> source(from + bytes + 1);  // never without memory, which memcpy does not allow
        for (std::size_t i = 0; i < source.size(); ++i) {
          source[i] = static_cast<std::byte>(i * 31 % 251);
        }
        std::vector<std::byte> target(to + bytes + kRoom, kUntouched);
        publish(target.data() + to, source.data() + from, bytes);
        for (std::size_t i = 0; i < target.size(); ++i) {
          const bool copied = i >= to && i < to + bytes;
          ASSERT_EQ(target[i], copied ? source[from + i - to] : kUntouched)
              << "byte " << i << " of " << bytes << " copied from " << from << " to " << to;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::collective
