#include "heap/served_region.hpp"

#include <map>
#include <utility>

namespace lockstep::heap {
namespace {

constexpr std::size_t kLeastServed = 4096;
constexpr int kBlocksOfEach = 2;

// Of one block, with what is lost to alignment.
std::size_t most_bytes(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  return bytes + kPage;
}

// The library deletes it when the last block is back.
int commit(void* room, void* first, std::size_t bytes) {
  return static_cast<const Room*>(room)->commit(static_cast<std::byte*>(first), bytes) ? 1 : 0;
}
void release(void* room) { delete static_cast<Room*>(room); }

}  // namespace

std::vector<lockstep_preload_class> classes_for(const std::vector<std::size_t>& sizes, std::size_t budget) {
  std::map<std::size_t, std::size_t> counts;
  std::size_t used = 0;
  for (int round = 0; round < kBlocksOfEach; ++round) {
    for (const std::size_t bytes : sizes) {
      if (bytes < kLeastServed || bytes > budget || used + most_bytes(bytes) > budget) continue;
      used += most_bytes(bytes);
      ++counts[bytes];
    }
  }
  std::vector<lockstep_preload_class> classes;
  for (const auto& [bytes, count] : counts) classes.push_back({.bytes = bytes, .count = count});
  return classes;
}

std::size_t room_for_all(const std::vector<std::size_t>& sizes) {
  std::size_t room = 0;
  for (const std::size_t bytes : sizes) room += bytes < kLeastServed ? 0 : kBlocksOfEach * most_bytes(bytes);
  return room;
}

int serve(const lockstep_preload_library& library, const std::vector<lockstep_preload_class>& classes, Room room,
          int (*meant)(), std::string& why_not) {
  auto kept = std::make_unique<Room>(std::move(room));
  const lockstep_preload_region region{.base = kept->base,
                                       .bytes = kept->bytes,
                                       .classes = classes.data(),
                                       .class_count = classes.size(),
                                       .commit = &commit,
                                       .meant = meant,
                                       .release = &release,
                                       .context = kept.get()};
  const char* problem = nullptr;
  const int handle = library.serve(&region, &problem);
  if (handle < 0) {
    why_not = problem;
  } else {
    static_cast<void>(kept.release());
  }
  return handle;
}

}  // namespace lockstep::heap
