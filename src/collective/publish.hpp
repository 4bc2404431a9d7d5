// Copying to memory that a peer has read last, and reads next.
#pragma once

#include <cstddef>

namespace lockstep::collective {

/// As memcpy. A plain store to a line that another core holds has to ask for the line first, and between cores far
/// apart this takes four times as long as to replace the line whole, which only the processor's own block copy does
/// (docs/performance.md, "The user's own memory"). The C library uses that too, or not, by its version. Slower by far
/// where `to` lies 1 to 63 bytes behind `from`, counted within a page; not where both begin at a cache line.
void publish(std::byte* to, const std::byte* from, std::size_t bytes);

}  // namespace lockstep::collective
