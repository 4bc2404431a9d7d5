#include "collective/reach.hpp"

#include <algorithm>
#include <limits>

namespace lockstep::collective {

constexpr std::size_t kBlock = 64 * 1024;  // a few of them fit the second-level cache

std::size_t Reach::block_bytes() const {
  const bool private_memory = std::any_of(call_.parties.begin(), call_.parties.end(), [](const Party& party) {
    return (party.input == nullptr && party.input_place != transport::kNowhere) ||
           (party.output == nullptr && party.output_place != transport::kNowhere);
  });
  return private_memory ? kBlock : std::numeric_limits<std::size_t>::max();
}

std::span<const std::byte* const> Reach::leaves(std::size_t offset, std::size_t bytes) {
  leaves_.resize(table_.size());
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    leaves_[i] = leaf(i, offset, bytes);
    if (leaves_[i] == nullptr) return {};
  }
  return leaves_;
}

const std::byte* Reach::leaf(std::size_t index, std::size_t offset, std::size_t bytes) {
  const LeafTable::Entry& entry = table_.entries()[index];
  const Party& party = call_.parties[entry.party];
  if (party.input != nullptr) return party.input + entry.offset + offset;
  std::byte* block = buffer(inputs_, index, bytes);
  return shared_->read(party.rank, party.input_place, entry.offset + offset, {block, bytes}) ? block : nullptr;
}

std::byte* Reach::output(std::size_t index, std::size_t offset, std::size_t bytes) {
  const Party& party = call_.parties[index];
  return party.output != nullptr ? party.output + offset : buffer(outputs_, index, bytes);
}

bool Reach::deliver(std::size_t index, std::size_t offset, std::size_t bytes) {
  const Party& party = call_.parties[index];
  if (party.output != nullptr) return true;
  return shared_->write(party.rank, party.output_place, offset, {buffer(outputs_, index, bytes), bytes});
}

std::byte* Reach::buffer(std::vector<std::vector<std::byte>>& buffers, std::size_t index, std::size_t bytes) {
  if (buffers.size() <= index) buffers.resize(index + 1);
  if (buffers[index].size() < bytes) buffers[index].resize(bytes);
  return buffers[index].data();
}

}  // namespace lockstep::collective
