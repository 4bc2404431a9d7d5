// All-reduce of a pack (pack.hpp): another algorithm reduces it as if it were one tensor.
#include <algorithm>
#include <cstring>

#include "collective/algorithm.hpp"
#include "collective/pack.hpp"
#include "collective/slices.hpp"

namespace lockstep::collective {
namespace {

std::size_t line_elements(DType dtype) { return 128 / size_of(dtype); }

std::size_t padded(std::size_t elements, DType dtype) {
  const std::size_t line = line_elements(dtype);
  return (elements + line - 1) / line * line;
}

class PackedReduce final : public Algorithm {
 public:
  explicit PackedReduce(const Call& call) : pack_(*call.pack) {
    Call whole = call;
    whole.pack = nullptr;
    whole.slices = lay_out(call);
    bring();
    whole.epilogue = [this](const ReducedSlice& slice) { hand_out(slice); };
    algorithm_ = choose(whole);
  }

  bool advance() override {
    if (!algorithm_->advance()) return false;
    fetch();
    return true;
  }

 private:
  // What one rank owns of one tensor.
  struct Part {
    std::size_t place = 0;  // in the pack
    std::size_t tensor = 0;
    ElementRange range;  // of the tensor
  };

  std::vector<ElementRange> lay_out(const Call& call) {
    std::vector<ElementRange> slices(call.count());
    std::size_t place = 0, index = 0;
    for (std::size_t party = 0; party < call.count(); ++party) {
      if (!call.parties[party].present) continue;
      slices[party].offset = place;
      for (std::size_t tensor = 0; tensor < pack_.tensors.size(); ++tensor) {
        const ElementRange range = owned_slice(pack_.tensors[tensor].elements, pack_.dtype, index, call.present());
        if (range.count == 0) continue;
        parts_.push_back({.place = place, .tensor = tensor, .range = range});
        place += padded(range.count, pack_.dtype);
      }
      slices[party].count = place - slices[party].offset;
      ++index;
    }
    return slices;
  }

  std::byte* at(std::size_t element) const { return pack_.memory.data() + element * size_of(pack_.dtype); }

  void bring() const {
    const std::size_t width = size_of(pack_.dtype);
    for (const Part& part : parts_) {
      const std::size_t bytes = part.range.count * width;
      std::memcpy(at(part.place), pack_.tensors[part.tensor].input + part.range.offset * width, bytes);
      std::memset(at(part.place) + bytes, 0, padded(part.range.count, pack_.dtype) * width - bytes);
    }
  }

  void fetch() const {
    const std::size_t width = size_of(pack_.dtype);
    for (const Part& part : parts_) {
      std::memcpy(pack_.tensors[part.tensor].output + part.range.offset * width, at(part.place),
                  part.range.count * width);
    }
  }

  // Gives each tensor's epilogue what the slice has of it.
  void hand_out(const ReducedSlice& slice) const {
    const std::size_t end = slice.offset + slice.count;
    auto part = std::upper_bound(parts_.begin(), parts_.end(), slice.offset,
                                 [](std::size_t place, const Part& one) { return place < one.place; });
    for (--part; part != parts_.end() && part->place < end; ++part) {
      const std::size_t first = std::max(part->place, slice.offset);
      const std::size_t last = std::min(part->place + part->range.count, end);
      if (first >= last) continue;
      pack_.tensors[part->tensor].epilogue(
          {.offset = part->range.offset + (first - part->place),
           .count = last - first,
           .values = static_cast<std::byte*>(slice.values) + (first - slice.offset) * size_of(pack_.dtype)});
    }
  }

  const Pack& pack_;
  std::vector<Part> parts_;  // in the order of their places
  std::unique_ptr<Algorithm> algorithm_;
};

std::size_t elements_of(const std::vector<Pack::Tensor>& tensors, DType dtype) {
  std::size_t elements = 0;
  for (const Pack::Tensor& tensor : tensors) elements += padded(tensor.elements, dtype);
  return elements;
}

}  // namespace

Pack::Pack(std::vector<Tensor> contents, DType type)
    : tensors(std::move(contents)),
      dtype(type),
      elements(elements_of(tensors, type)),
      memory(elements * size_of(type)) {}

std::unique_ptr<Algorithm> make_packed_reduce(const Call& call) { return std::make_unique<PackedReduce>(call); }

}  // namespace lockstep::collective
